-- Binary packets: a head, and a body whose length is in the head or follows from its fields.

local packets = {}
runtime.framings.packets = packets

-- Returns the packet that starts at the position; or nil, and whether more bytes may show it.
local function find(context, tvb, at)
  local pending = false
  for _, packet in ipairs(context.frames.packets) do
    local size = math.min(#packet.start, tvb:len() - at)
    if size == 0 or tvb:raw(at, size) == packet.start:sub(1, size) then
      if size == #packet.start then
        return packet
      end
      pending = true
    end
  end
  return nil, pending
end

local function read(tvb, at, place)
  local range = tvb(at + place.at, place.size)
  return place.big and range:uint() or range:le_uint()
end

local function selected(packet, tvb, at)
  if not packet.select then
    return packet.frames[0]
  end
  local value = read(tvb, at, packet.select)
  return packet.frames[value], value
end

-- Returns whether the broker stops at the frame's type: it cannot skip a frame that clients do not
-- send if its length follows from its fields.
local function refuses(context, packet, frame)
  return not packet.length and frame.sender == "broker" and context.sender == "client"
end

-- See runtime.framings.
function packets.measure(context, tvb, at)
  local rest = tvb:len() - at
  local packet, pending = find(context, tvb, at)
  if not packet then
    return not pending and rest or nil
  elseif rest < packet.head_size then
    return nil
  end
  local size, too_long
  if packet.length then
    size = read(tvb, at, packet.length)
    too_long = size > packet.limit
  else
    local frame = selected(packet, tvb, at)
    if not frame or refuses(context, packet, frame) then
      return rest
    end
    size, too_long = runtime.measure_items(context, frame.items, tvb, at + packet.head_size, tvb:len())
  end
  if too_long then
    return rest
  end
  return size and packet.head_size + size + (packet.crc32 and 4 or 0)
end

local function hex(text)
  return (text:gsub(".", function(byte)
    return string.format("%02x", byte:byte())
  end))
end

local function no_packet(context, tree, tvb, at, stop)
  local node = tree:add(context.fields.undecoded, tvb(at, stop - at))
  local start = context.frames.packets[1].start
  local found = tvb:raw(at, math.min(#start, stop - at))
  local text = string.format("the packet begins with %s instead of %s", hex(found), hex(start))
  if #start > 1 and found == start:reverse() then
    text = text .. ": the magic is in the other byte order"
  end
  runtime.expert(context, node, "magic", text)
  return "bad magic"
end

local function check_sender(context, tree, frame)
  local sender = context.sender
  if sender and frame.sender ~= "either" and frame.sender ~= sender then
    local text = string.format("%s, which only the %s sends", frame.name, frame.sender)
    runtime.expert(context, tree, "sender", text)
  end
end

local function check_sum(context, tree, tvb, at, stop)
  local node = tree:add_le(context.fields.checksum, tvb(stop, 4))
  if tvb(stop, 4):le_uint() ~= runtime.crc32(tvb:raw(at, stop - at)) then
    runtime.expert(context, node, "checksum", "the checksum is wrong")
  end
end

local function add_body(context, tree, packet, tvb, at, stop)
  local frame, value = selected(packet, tvb, at)
  local start = at + packet.head_size
  if not frame then
    if start < stop then
      tree:add(context.fields.undecoded, tvb(start, stop - start))
    end
    runtime.expert(context, tree, "opcode", string.format("0x%02x is unknown", value))
    return string.format("unknown 0x%02x", value)
  end
  tree:append_text(", " .. frame.name)
  check_sender(context, tree, frame)
  if refuses(context, packet, frame) then
    if start < stop then
      tree:add(context.fields.undecoded, tvb(start, stop - start))
    end
    return frame.name
  end
  runtime.decode_all(context, tree, frame.items, tvb, start, stop)
  return runtime.summary(frame.name, context.parts)
end

-- See runtime.framings.
function packets.dissect(context, tree, tvb, at, stop)
  local packet, pending = find(context, tvb, at)
  if pending then
    tree:add(context.fields.undecoded, tvb(at, stop - at))
    return "truncated"
  elseif not packet then
    return no_packet(context, tree, tvb, at, stop)
  elseif not runtime.decode(context, tree, packet.head, tvb, at, stop) then
    return "truncated"
  end
  local body_stop = packet.crc32 and not context.truncated and stop - 4 or stop
  if packet.length then
    local length = read(tvb, at, packet.length)
    if length > packet.limit then
      local text = string.format("a body of %.0f bytes; %d are allowed", length, packet.limit)
      runtime.expert(context, tree, "length", text)
      if at + packet.head_size < stop then
        tree:add(context.fields.undecoded, tvb(at + packet.head_size, stop - at - packet.head_size))
      end
      return "length " .. string.format("%.0f", length)
    end
    body_stop = math.min(body_stop, at + packet.head_size + length)
  end
  context.parts = {}
  local text = add_body(context, tree, packet, tvb, at, body_stop)
  if body_stop + 4 <= stop and packet.crc32 then
    check_sum(context, tree, tvb, at, body_stop)
  end
  return text
end

-- See runtime.framings.
function packets.recognise(context, tvb)
  local length = packets.measure(context, tvb, 0)
  local packet = find(context, tvb, 0)
  if not length or not packet or not selected(packet, tvb, 0) then
    return false
  end
  return #packet.start > 1 and length <= tvb:len() or length == tvb:len()
end
