-- Decodes the declared items of a frame, one after another.
--
-- A context has the state of one unit: fields and experts of the protocol, options, parts (texts for
-- the column Info), and truncated if bytes at its end are missing from the capture.

local kinds = {}

-- Presentations: show(context, tree, item, range) adds the field and returns it, and its text for
-- the column Info or nil.
runtime.shows = {}

function runtime.expert(context, node, name, text)
  node:add_proto_expert_info(context.experts[name], text)
end

local function short(context, tree, item, missing)
  if not context.truncated then
    local text = string.format("%s: %s missing", item.name, runtime.count(missing, "byte"))
    runtime.expert(context, tree, "malformed", text)
  end
  return nil
end

local function number_of(item, range)
  if item.size > 4 then
    return item.big and range:uint64() or range:le_uint64()
  end
  return item.big and range:uint() or range:le_uint()
end

local function add_number(context, tree, name, item, range)
  if item.big then
    return tree:add(context.fields[name], range)
  end
  return tree:add_le(context.fields[name], range)
end

-- The limit of a length: a number, or the value of a setting.
function runtime.limit(context, limit)
  if type(limit) == "string" then
    return context.options[limit]
  end
  return limit
end

local function show_flags(context, node, item, range, value)
  local rest = value
  local names = {}
  for _, flag in ipairs(item.flags) do
    local name = item.name .. "." .. flag.name
    node:add(context.fields[name], range)
    if math.floor(value / flag.bit) % 2 == 1 then
      rest = rest - flag.bit
      names[#names + 1] = flag.name
    end
  end
  if rest ~= 0 then
    runtime.expert(context, node, "malformed", string.format("unknown flags 0x%02x", rest))
  end
  return #names > 0 and table.concat(names, ",") or nil
end

local function show_time(context, node, item, range)
  local value = number_of(item, range)
  local seconds = (value / 1000):tonumber()
  -- The later ones are beyond Wireshark's calendar.
  if seconds >= 0 and seconds < 2 ^ 36 then
    local time = NSTime.new(seconds, (value % 1000):tonumber() * 1000000)
    node:add(context.fields[item.name .. ".time"], range, time):set_generated()
  end
end

local function name_of_value(context, node, item, value)
  local name = item.values[value]
  if item.strict and not name then
    runtime.expert(context, node, "malformed", string.format("%s: %d is not valid", item.name, value))
  end
  if item.refusal and value ~= 0 then
    runtime.expert(context, node, "refused", name or tostring(value))
  end
  return name or tostring(value)
end

function kinds.uint(context, tree, item, tvb, at, stop)
  if at + item.size > stop then
    return short(context, tree, item, at + item.size - stop)
  end
  local range = tvb(at, item.size)
  local node = add_number(context, tree, item.name, item, range)
  if item.show == "milliseconds" then
    show_time(context, node, item, range)
    return at + item.size
  end
  local value = number_of(item, range)
  local text
  if item.flags then
    text = show_flags(context, node, item, range, value)
  elseif item.values then
    text = name_of_value(context, node, item, value)
  elseif item.show == "hex" then
    local digits = item.size > 4 and value:tohex() or string.format("%0" .. 2 * item.size .. "x", value)
    text = item.name .. "=0x" .. digits
  else
    text = item.name .. "=" .. tostring(value)
  end
  context.parts[#context.parts + 1] = text
  return at + item.size
end

function runtime.shows.bytes(context, tree, item, range)
  local node = tree:add(context.fields[item.name], range)
  local preview = runtime.preview(range:raw())
  if preview then
    node:append_text(" " .. preview)
  end
  return node, runtime.count(range:len(), "byte")
end

function runtime.add_text(context, tree, name, range)
  if range:len() == 0 then
    return tree:add(context.fields[name], range, "")
  end
  return tree:add_packet_field(context.fields[name], range, ENC_UTF_8)
end

function runtime.shows.text(context, tree, item, range)
  local node = runtime.add_text(context, tree, item.name, range)
  local text = range:raw()
  if item.suffix then
    local from = text:match("^.*" .. item.suffix.pattern .. "()")
    if from then
      local rest, part = text:sub(from), node
      if rest ~= "" then
        part = runtime.add_text(context, node, item.suffix.name, range(from - 1, #rest))
      end
      if not rest:find("^" .. ("%x"):rep(item.suffix.digits) .. "$") then
        local said = ("%s: %d hexadecimal digits expected"):format(item.suffix.name, item.suffix.digits)
        runtime.expert(context, part, "malformed", said)
      end
    end
  end
  return node, (runtime.preview(text) or runtime.count(#text, "byte"))
end

function runtime.shows.uuid(context, tree, item, range)
  return tree:add(context.fields[item.name], range), nil
end

local function check(context, node, item, range)
  local length = range:len()
  local text
  if item.least and length < item.least then
    text = "%s: %d bytes; %d are the fewest"
    text = text:format(item.name, length, item.least)
  elseif item.most and length > item.most then
    text = ("%s: %d bytes; %d are the most"):format(item.name, length, item.most)
  elseif item.utf8 and not runtime.is_utf8(range:raw()) then
    text = item.name .. ": not UTF-8"
  elseif item.nonzero and not range:raw():find("[^%z]") then
    text = item.name .. ": zero"
  end
  if text then
    runtime.expert(context, node, "malformed", text)
  end
end

local function show_range(context, tree, item, range)
  local node, text = runtime.shows[item.show](context, tree, item, range)
  if item.each then
    for index = 0, range:len() - 1 do
      node:add(context.fields[item.each], range(index, 1))
    end
    text = runtime.count(range:len(), item.each)
  end
  check(context, node, item, range)
  context.parts[#context.parts + 1] = text
end

function kinds.fixed(context, tree, item, tvb, at, stop)
  if at + item.size > stop then
    return short(context, tree, item, at + item.size - stop)
  end
  show_range(context, tree, item, tvb(at, item.size))
  return at + item.size
end

function kinds.counted(context, tree, item, tvb, at, stop)
  local from = at + item.size
  if from > stop then
    return short(context, tree, item, from - stop)
  end
  local range = tvb(at, item.size)
  local node = add_number(context, tree, item.name .. ".length", item, range)
  local length = number_of(item, range)
  local limit = runtime.limit(context, item.limit)
  if limit and length > limit then
    local text = string.format("%s: %d bytes; %d are allowed", item.name, length, limit)
    runtime.expert(context, node, "length", text)
    return nil
  end
  if from + length > stop then
    return short(context, tree, item, from + length - stop)
  end
  show_range(context, tree, item, tvb(from, length))
  return from + length
end

function kinds.rest(context, tree, item, tvb, at, stop)
  show_range(context, tree, item, tvb(at, stop - at))
  return stop
end

function kinds.repeated(context, tree, item, tvb, at, stop)
  while at < stop do
    local node = tree:add(context.fields[item.name], tvb(at, 0))
    local next_at = runtime.decode(context, node, item.items, tvb, at, stop)
    if not next_at then
      return nil
    end
    node:set_len(next_at - at)
    at = next_at
  end
  return at
end

-- Decodes the items from at to stop, and returns where they end, or nil if they do not fit.
function runtime.decode(context, tree, items, tvb, at, stop)
  for _, item in ipairs(items) do
    local next_at = kinds[item.kind](context, tree, item, tvb, at, stop)
    if not next_at then
      if at < stop then
        tree:add(context.fields.undecoded, tvb(at, stop - at))
      end
      return nil
    end
    at = next_at
  end
  return at
end

-- Decodes items that are all there is up to stop.
function runtime.decode_all(context, tree, items, tvb, at, stop)
  local last = runtime.decode(context, tree, items, tvb, at, stop)
  if last and last < stop then
    local node = tree:add(context.fields.undecoded, tvb(last, stop - last))
    local text = runtime.count(stop - last, "byte") .. " too many"
    runtime.expert(context, node, "malformed", text)
  end
end

-- Returns the number of bytes of the items, which start at the position; or nil if it is not known
-- yet; or nil and true if a length in them is over its limit.
function runtime.measure_items(context, items, tvb, at, stop)
  local from = at
  for _, item in ipairs(items) do
    local size = item.size
    if item.kind == "counted" then
      if at + size > stop then
        return nil
      end
      local length = number_of(item, tvb(at, size))
      local limit = runtime.limit(context, item.limit)
      if limit and length > limit then
        return nil, true
      end
      size = size + length
    end
    at = at + size
  end
  return at - from
end
