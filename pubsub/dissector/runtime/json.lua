-- JSON with the places of its values: {type, first, last}, where first and last are positions of
-- bytes from 1. Strings and numbers also have text, arrays values, objects members {name, value}.

local DEPTH = 500
local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
local parse_value

local function fault(at, text)
  error({ at = at, text = text }, 0)
end

local function skip_space(text, at)
  return text:find("[^ \t\r\n]", at) or #text + 1
end

local function hex4(text, at)
  local digits = text:match("^%x%x%x%x", at)
  if not digits then
    fault(at, "four hexadecimal digits expected")
  end
  return tonumber(digits, 16)
end

-- Returns the character of the escape whose u is at the position, and where it ends.
local function unicode(text, at)
  local code = hex4(text, at + 1)
  if code >= 0xD800 and code < 0xDC00 and text:sub(at + 5, at + 6) == "\\u" then
    local low = hex4(text, at + 7)
    if low >= 0xDC00 and low < 0xE000 then
      return runtime.character(0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00), at + 11
    end
  end
  if code >= 0xD800 and code < 0xE000 then
    fault(at, "a lone surrogate")
  end
  return runtime.character(code), at + 5
end

local function parse_string(text, at)
  local pieces, from = {}, at + 1
  while true do
    local stop = text:find('["\\%z\1-\31]', from)
    local what = stop and text:sub(stop, stop)
    if not stop or what < " " then
      fault(stop or #text, "a string without its end")
    end
    pieces[#pieces + 1] = text:sub(from, stop - 1)
    if what == '"' then
      return { type = "string", first = at, last = stop, text = table.concat(pieces) }
    end
    local escape = text:sub(stop + 1, stop + 1)
    if escape == "u" then
      pieces[#pieces + 1], from = unicode(text, stop + 1)
    elseif escape ~= "" and ('"\\/bfnrt'):find(escape, 1, true) then
      pieces[#pieces + 1], from = ESCAPES[escape] or escape, stop + 2
    else
      fault(stop, "an unknown escape")
    end
  end
end

local function parse_number(text, at)
  local last = select(2, text:find("^-?%d+", at))
  local digits = last and text:sub(at, last)
  if not last or digits:find("^-?0%d") then
    fault(at, "a value expected")
  end
  local whole = last
  last = select(2, text:find("^%.%d+", last + 1)) or last
  last = select(2, text:find("^[eE][+-]?%d+", last + 1)) or last
  local kind = whole == last and "integer" or "number"
  if kind == "number" and math.abs(tonumber(text:sub(at, last))) == math.huge then
    fault(at, "a number that is too large")
  end
  return { type = kind, first = at, last = last, text = text:sub(at, last) }
end

-- Calls one for each element up to the closing bracket, and returns the bracket's position.
local function parse_list(text, at, close, one)
  at = skip_space(text, at + 1)
  if text:sub(at, at) == close then
    return at
  end
  while true do
    at = skip_space(text, one(at) + 1)
    local what = text:sub(at, at)
    if what == close then
      return at
    elseif what ~= "," then
      fault(at, "a comma expected")
    end
    at = skip_space(text, at + 1)
  end
end

local function parse_array(text, at, depth)
  local node = { type = "array", first = at, values = {} }
  node.last = parse_list(text, at, "]", function(from)
    local value = parse_value(text, from, depth + 1)
    node.values[#node.values + 1] = value
    return value.last
  end)
  return node
end

local function parse_object(text, at, depth)
  local node = { type = "object", first = at, members = {} }
  node.last = parse_list(text, at, "}", function(from)
    if text:sub(from, from) ~= '"' then
      fault(from, "a name expected")
    end
    local name = parse_string(text, from)
    local colon = skip_space(text, name.last + 1)
    if text:sub(colon, colon) ~= ":" then
      fault(colon, "a colon expected")
    end
    local value = parse_value(text, skip_space(text, colon + 1), depth + 1)
    node.members[#node.members + 1] = { name = name, value = value }
    return value.last
  end)
  return node
end

function parse_value(text, at, depth)
  local what = text:sub(at, at)
  if depth > DEPTH then
    fault(at, "too many levels")
  elseif what == '"' then
    return parse_string(text, at)
  elseif what == "{" then
    return parse_object(text, at, depth)
  elseif what == "[" then
    return parse_array(text, at, depth)
  end
  for _, word in ipairs({ "true", "false", "null" }) do
    if text:sub(at, at + #word - 1) == word then
      return { type = word, first = at, last = at + #word - 1, text = word }
    end
  end
  return parse_number(text, at)
end

-- Returns the value that is the whole text; or nil, the position of a fault, and what it is.
function runtime.parse_json(text)
  local fine, node = pcall(function()
    local value = parse_value(text, skip_space(text, 1), 1)
    local after = skip_space(text, value.last + 1)
    if after <= #text then
      fault(after, "more than one value")
    end
    return value
  end)
  if fine then
    return node
  elseif type(node) == "table" then
    return nil, node.at, node.text
  end
  return nil, 1, tostring(node)
end

-- Returns the value of the last member of this name, or nil.
function runtime.json_member(node, name)
  local found
  for _, member in ipairs(node.type == "object" and node.members or {}) do
    if member.name.text == name then
      found = member.value
    end
  end
  return found
end
