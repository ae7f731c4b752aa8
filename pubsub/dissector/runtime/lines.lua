-- Lines of JSON, or of JSON in base64.

local lines = {}
runtime.framings.lines = lines

local CHUNK = 8192
local CHECKS = {}

-- Returns the position of the line's end, or nil.
local function find_end(tvb, at)
  local stop, size = tvb:len(), CHUNK
  while at < stop do
    size = math.min(size, stop - at)
    local found = tvb:raw(at, size):find("\n", 1, true)
    if found then
      return at + found - 1
    end
    at, size = at + size, 2 * size
  end
  return nil
end

-- See runtime.framings.
function lines.measure(context, tvb, at)
  local found = find_end(tvb, at)
  if found then
    return found + 1 - at
  elseif context.sender == "client" and tvb:len() - at > context.frames.limit then
    return tvb:len() - at
  end
  return nil
end

-- The text of a line, and how its places become ranges of bytes.
local function unwrap(context, tree, tvb, at, stop)
  local text = tvb:raw(at, stop - at)
  if runtime.is_base64(text) then
    context.base64 = true
    local decoded = ByteArray.new(text, true):base64_decode()
    if decoded:len() > 0 then
      local inner = decoded:tvb("JSON of the line")
      tree:add(context.fields.base64, tvb(at, stop - at), true):set_generated()
      return decoded:raw(), inner, 0
    end
  end
  return text, tvb, at
end

local function range_of(source, node)
  return source.tvb(source.at + node.first - 1, node.last - node.first + 1)
end

local function malformed(context, tree, text)
  runtime.expert(context, tree, "malformed", text)
end

local function check_text(context, node, member, text)
  if member.least and #text < member.least or member.most and #text > member.most then
    malformed(context, node, string.format("%s: %d bytes", member.name, #text))
  end
end

-- Returns the Int64 of decimal digits, or nil if it may not fit.
local function int64(text)
  local sign, digits = text:match("^(-?)0*(%d+)$")
  if not digits or #digits > 18 then
    return nil
  end
  local high, low = digits:sub(1, -10), digits:sub(-9)
  local value = Int64.new(tonumber(low))
  if high ~= "" then
    value = value + Int64.new(tonumber(high)) * Int64.new(1000000000)
  end
  return sign == "-" and -value or value
end

function CHECKS.string(context, tree, member, node, source)
  local item = tree:add(context.fields[member.field], range_of(source, node), node.text)
  check_text(context, item, member, node.text)
  return member.name .. "=" .. (runtime.preview(node.text) or '""')
end

function CHECKS.integer(context, tree, member, node, source)
  local value = int64(node.text)
  if not value then
    malformed(context, tree, member.name .. ": an integer that is too large to be shown")
    return member.name .. "=" .. node.text
  end
  tree:add(context.fields[member.field], range_of(source, node), value)
  return member.name .. "=" .. node.text
end

function CHECKS.boolean(context, tree, member, node, source)
  tree:add(context.fields[member.field], range_of(source, node), node.type == "true")
  return member.name .. "=" .. node.type
end

function CHECKS.base64(context, tree, member, node, source)
  local item = tree:add(context.fields[member.field], range_of(source, node), node.text)
  if runtime.is_base64(node.text) then
    local inner = ByteArray.new(node.text, true):base64_decode():tvb(member.name)
    item:add(context.fields[member.field .. ".decoded"], inner())
  end
  return nil
end

local add_object

function CHECKS.object(context, tree, member, node, source)
  local text = source.text:sub(node.first, node.last)
  local item = tree:add(context.fields[member.field], range_of(source, node), text)
  return add_object(context, item, context.frames.objects[member.of], node, source)
end

function CHECKS.array(context, tree, member, node, source)
  local item = tree:add(context.fields[member.field], range_of(source, node), "")
  item:set_text(string.format("%s: %s", member.title, runtime.count(#node.values, "element")))
  for _, value in ipairs(node.values) do
    if value.type == "object" then
      CHECKS.object(context, item, { field = member.each, of = member.of }, value, source)
    else
      malformed(context, item, member.name .. ": not a list of objects")
    end
  end
  return runtime.count(#node.values, "message")
end

local JSON_TYPES = { base64 = "string", ["true"] = "boolean", ["false"] = "boolean" }

local function add_member(context, tree, member, node, source)
  local expected = JSON_TYPES[member.type] or member.type
  if (JSON_TYPES[node.type] or node.type) ~= expected then
    local text = source.text:sub(node.first, math.min(node.last, node.first + 63))
    local item = tree:add(context.fields.further, range_of(source, node), member.name .. ": " .. text)
    if member.required then
      malformed(context, item, string.format("%s: not of the type %s", member.name, expected))
    end
    return nil
  end
  return CHECKS[member.type](context, tree, member, node, source)
end

local function add_further(context, tree, object, node, source)
  local known = { [context.frames.class_member] = true }
  for _, member in ipairs(object.members) do
    known[member.name] = true
  end
  for _, each in ipairs(node.members) do
    if not known[each.name.text] then
      local text = each.name.text .. ": " .. source.text:sub(each.value.first, each.value.last)
      local whole = { first = each.name.first, last = each.value.last }
      tree:add(context.fields.further, range_of(source, whole), text)
    end
  end
end

function add_object(context, tree, object, node, source)
  local class = runtime.json_member(node, context.frames.class_member)
  local named = class and class.type == "string" and class.text
  if class then
    tree:add(context.fields.class, range_of(source, class), named or "")
  end
  if named ~= object.name then
    malformed(context, tree, object.name .. " expected as " .. context.frames.class_member)
  end
  local parts = {}
  for _, member in ipairs(object.members) do
    local value = runtime.json_member(node, member.name)
    if value then
      parts[#parts + 1] = add_member(context, tree, member, value, source)
    elseif member.required then
      malformed(context, tree, member.name .. " is missing")
    end
  end
  add_further(context, tree, object, node, source)
  return table.concat(parts, " ")
end

local function check_object(context, tree, object, text)
  if object.refusal then
    runtime.expert(context, tree, "refused", text)
  end
  if context.sender and object.sender ~= context.sender and object.sender ~= "either" then
    local said = string.format("%s, which only the %s sends", object.name, object.sender)
    runtime.expert(context, tree, "sender", said)
  end
end

local function add_json(context, tree, source, stop_at)
  if not runtime.is_utf8(source.text) then
    malformed(context, tree, "not UTF-8")
    return "not UTF-8"
  end
  local node, at, fault = runtime.parse_json(source.text)
  if not node then
    malformed(context, tree, string.format("not JSON: %s at byte %d", fault, at))
    return "not JSON"
  end
  local class = runtime.json_member(node, context.frames.class_member)
  local object = class and class.type == "string" and context.frames.objects[class.text]
  if not object then
    local text = class and class.text and "unknown " .. class.text or "not an object of the protocol"
    runtime.expert(context, tree, "opcode", text)
    return text
  end
  tree:append_text(", " .. object.name)
  local text = add_object(context, tree, object, node, source)
  check_object(context, tree, object, text)
  return object.name .. (text ~= "" and " " .. text or "")
end

-- See runtime.framings.
function lines.dissect(context, tree, tvb, at, stop)
  local last = stop
  if last > at and tvb:raw(last - 1, 1) == "\n" then
    last = last - 1
  elseif not context.truncated then
    runtime.expert(context, tree, "length", "a line of more than " .. context.frames.limit .. " bytes")
    return "too long"
  end
  if last > at and tvb:raw(last - 1, 1) == "\r" then
    last = last - 1
  end
  if last - at > context.frames.limit and context.sender == "client" then
    runtime.expert(context, tree, "length", "a line of more than " .. context.frames.limit .. " bytes")
    return "too long"
  elseif last == at then
    malformed(context, tree, "an empty line")
    return "empty line"
  end
  local line = runtime.add_text(context, tree, "line", tvb(at, last - at))
  if context.truncated then
    return "truncated"
  end
  local text, inner, from = unwrap(context, tree, tvb, at, last)
  local word = add_json(context, tree, { text = text, tvb = inner, at = from })
  return word
end

-- See runtime.framings.
function lines.recognise(context, tvb)
  local length = lines.measure(context, tvb, 0)
  local start = tvb:raw(0, math.min(tvb:len(), CHUNK))
  return length ~= nil and start:find('^{"' .. context.frames.class_member .. '"') ~= nil
end
