-- The presentation "token": a JSON Web Token in its compact form. Its signature is not verified.

local TIMES = { exp = true, nbf = true }

-- Returns the bytes of base64url without padding, or nil.
local function decoded(text)
  local padded = text:gsub("-", "+"):gsub("_", "/") .. string.rep("=", -#text % 4)
  if not runtime.is_base64(padded) then
    return nil
  end
  return ByteArray.new(padded, true):base64_decode()
end

local function add_claim(context, tree, name, value, inner, text)
  local range = inner(value.first - 1, value.last - value.first + 1)
  local shown = value.text or text:sub(value.first, value.last)
  local field = context.fields["token." .. name]
  if value.type == "array" then
    for _, each in ipairs(value.values) do
      tree:add(field, inner(each.first - 1, each.last - each.first + 1), each.text or "")
    end
    return
  end
  local node = tree:add(field, range, shown)
  local seconds = TIMES[name] and tonumber(shown)
  if seconds and seconds >= 0 and seconds < 2 ^ 36 then
    local time = NSTime.new(math.floor(seconds), math.floor(seconds % 1 * 1000000000))
    node:add(context.fields["token." .. name .. ".time"], range, time):set_generated()
  end
end

local function add_json(context, tree, range, name, members)
  local bytes = decoded(range:raw())
  local text = bytes and bytes:len() > 0 and bytes:raw()
  local object = text and runtime.is_utf8(text) and runtime.parse_json(text)
  if not object or object.type ~= "object" then
    runtime.expert(context, tree, "token", "token: the " .. name .. " is not an object of JSON")
    return
  end
  local node = tree:add(context.fields["token." .. name], range, text)
  local inner = bytes:tvb("The token's " .. name)
  for _, member in ipairs(members) do
    local value = runtime.json_member(object, member)
    if value then
      add_claim(context, node, member, value, inner, text)
    end
  end
end

function runtime.shows.token(context, tree, item, range)
  local node = runtime.add_text(context, tree, item.name, range)
  local text = range:raw()
  local first = text:find(".", 1, true)
  local second = first and text:find(".", first + 1, true)
  if not second or text:find(".", second + 1, true) then
    runtime.expert(context, node, "token", "token: three parts expected")
    return node, nil
  end
  add_json(context, node, range(0, first - 1), "header", { "alg", "kid" })
  local claims = { "queue_key", "permissions", "sub", "exp", "nbf" }
  add_json(context, node, range(first, second - first - 1), "claims", claims)
  local signature = decoded(text:sub(second + 1))
  if signature and signature:len() > 0 then
    local inner = signature:tvb("The token's signature")
    node:add(context.fields["token.signature"], inner())
    node:append_text(" (the signature is not verified)")
  end
  return node, nil
end
