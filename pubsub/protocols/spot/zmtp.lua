-- ZMTP: a greeting, then commands and messages of one or more frames.

local zmtp = {}
runtime.framings.zmtp = zmtp

local MORE, LONG, COMMAND = 1, 2, 4
local SUBSCRIBERS = { SUB = true, XSUB = true }
local PUBLISHERS = { PUB = true, XPUB = true }
-- The socket types that sides of connections have stated in READY; false after a greeting without
-- it.
local types = {}

function zmtp.init()
  types = {}
end

-- Returns a frame's place; or nil if its head is incomplete; or nil and what is wrong with it.
local function read_head(context, tvb, at, before)
  local rest = tvb:len() - at
  if rest < 2 then
    return nil
  end
  -- A long list of topics is read again with each of its segments: no ranges are made here.
  local start, head = tvb:raw(at, math.min(rest, 9)), 2
  local flags, size = start:byte(1, 2)
  if flags > MORE + LONG + COMMAND or flags >= COMMAND and flags % 2 == MORE then
    return nil, { "malformed", string.format("flags 0x%02x", flags) }
  end
  if flags % COMMAND >= LONG then
    if rest < 9 then
      return nil
    end
    -- Not an integer of Lua 5.4, which would overflow.
    head, size = 9, 0.0
    for index = 2, 9 do
      size = size * 256 + start:byte(index)
    end
  end
  local client = context.sender == "client"
  local limit = client and context.options["max-message"] or context.frames.max_reply
  if size > limit then
    return nil, { "length", string.format("a frame of %.0f bytes; %d are allowed", size, limit) }
  elseif client and before >= context.frames.max_frames then
    return nil, { "length", "more than " .. context.frames.max_frames .. " frames" }
  end
  size = math.floor(size)
  local frame = { at = at, flags = flags, size = size, body = at + head, stop = at + head + size }
  frame.command, frame.more = flags >= COMMAND, flags % 2 == MORE
  return frame
end

-- Returns the frames of the unit at the position, and its end, which may be behind the buffer. The
-- end is nil if it is not known, because of bytes that are missing or of the fault returned last.
local function read_unit(context, tvb, at)
  local frames, messages = {}, 0
  while true do
    local frame, fault = read_head(context, tvb, at, #frames)
    if not frame then
      return frames, nil, fault
    end
    frames[#frames + 1], at = frame, frame.stop
    messages = messages + (frame.command and 0 or 1)
    if messages == 0 or not frame.command and not frame.more then
      return frames, at
    elseif at > tvb:len() then
      return frames, nil
    end
  end
end

local function is_greeting(tvb, at)
  return tvb(at, 1):uint() == 0xFF
end

local function greeting_fault(context, tvb, at)
  local rest, signature = tvb:len() - at, #context.frames.signature
  if rest >= signature and tvb(at + signature - 1, 1):uint() % 2 == 0 then
    return "not a greeting of ZMTP"
  elseif rest > signature and tvb(at + signature, 1):uint() < 3 then
    return "a version before 3.0"
  end
  return nil
end

-- See runtime.framings.
function zmtp.measure(context, tvb, at)
  local rest = tvb:len() - at
  if is_greeting(tvb, at) then
    if greeting_fault(context, tvb, at) then
      return rest
    end
    return context.frames.greeting_size
  end
  local _, stop, fault = read_unit(context, tvb, at)
  if stop then
    return stop - at
  end
  return fault and rest or nil
end

local function add_greeting(context, tree, tvb, at, stop)
  local signature = #context.frames.signature
  local fault = greeting_fault(context, tvb, at)
  if fault or stop - at < context.frames.greeting_size then
    tree:add(context.fields.undecoded, tvb(at, stop - at))
    if fault then
      runtime.expert(context, tree, "magic", fault)
    end
    return "greeting"
  end
  tree:append_text(", greeting")
  local direction = runtime.direction(context.pinfo)
  types[direction] = types[direction] or false
  tree:add(context.fields["greeting.signature"], tvb(at, signature))
  local after = runtime.decode(context, tree, context.frames.version, tvb, at + signature, stop)
  local size = #context.frames.mechanism
  local node = runtime.add_text(context, tree, "greeting.mechanism", tvb(after, size))
  if tvb:raw(after, size) ~= context.frames.mechanism then
    runtime.expert(context, node, "malformed", "the broker knows the mechanism NULL only")
  end
  return "greeting"
end

-- Adds the fields of frames, and returns their tree items.
local function add_frames(context, tree, tvb, frames, stop)
  local nodes = {}
  local parts = context.parts
  for index, frame in ipairs(frames) do
    local last = math.min(frame.stop, stop)
    local node = tree:add(context.fields.frame, tvb(frame.at, last - frame.at))
    context.parts = {}
    runtime.decode(context, node, context.frames.flags, tvb, frame.at, stop)
    node:set_text("Frame" .. (context.parts[1] and ", " .. context.parts[1] or ""))
    node:add(context.fields["frame.size"], tvb(frame.at + 1, frame.body - frame.at - 1))
    if frame.body <= last then
      node:add(context.fields["frame.body"], tvb(frame.body, last - frame.body))
    end
    nodes[index] = node
  end
  context.parts = parts
  return nodes
end

local function remember_type(context, tree, tvb, at, stop)
  local direction = runtime.direction(context.pinfo)
  types[direction] = types[direction] or ""
  while at < stop do
    local name_size = tvb(at, 1):uint()
    local value_at = at + 5 + name_size
    if value_at > stop then
      return
    end
    local name = tvb:raw(at + 1, name_size):lower()
    local size = tvb(value_at - 4, 4):uint()
    if value_at + size > stop then
      return
    end
    if name == "socket-type" then
      local value = tvb:raw(value_at, size)
      types[direction] = value
      local node = runtime.add_text(context, tree, "socket_type", tvb(value_at, size))
      context.parts = { value }
      if not context.frames.socket_types[value] then
        runtime.expert(context, node, "malformed", value .. ": the broker has no socket for it")
      end
    elseif name == "identity" then
      runtime.add_text(context, tree, "identity", tvb(value_at, size))
    end
    at = value_at + size
  end
end

local function add_command(context, tree, tvb, frame)
  local size = frame.size > 0 and tvb(frame.body, 1):uint() or 0
  if size == 0 or frame.size <= size then
    runtime.expert(context, tree, "malformed", "a command without its name")
    return "malformed command"
  end
  local name, at = tvb:raw(frame.body + 1, size), frame.body + 1 + size
  runtime.add_text(context, tree, "command.name", tvb(frame.body + 1, size))
  tree:append_text(", " .. name)
  local items = context.frames.commands[name]
  if items then
    runtime.decode_all(context, tree, items, tvb, at, frame.stop)
  elseif at < frame.stop then
    tree:add(context.fields.undecoded, tvb(at, frame.stop - at))
  end
  if name == "READY" then
    remember_type(context, tree, tvb, at, frame.stop)
  elseif name == "ERROR" then
    runtime.expert(context, tree, "refused", table.concat(context.parts, " "))
  end
  return runtime.summary(name, context.parts)
end

-- Returns the bytes of a frame with these items, or nil if it may have any number.
local function fixed_size(items)
  local size = 0
  for _, item in ipairs(items) do
    if item.kind ~= "uint" then
      return nil
    end
    size = size + item.size
  end
  return size
end

local function counts_fit(form, tvb, frames, first)
  local by = form.counted_by
  if not by then
    return true
  end
  local frame, repeated = frames[first + by.frame - 1], #frames - first - #form.frames + 1
  if by.size then
    return frame.size == by.size * repeated
  end
  return tvb(frame.body, 4):le_uint() == repeated
end

-- Returns whether the frames from first on have this form.
local function fits(form, tvb, frames, first)
  local count = #frames - first + 1
  if count < #form.frames or count > #form.frames and not form.repeated then
    return false
  end
  for index, items in ipairs(form.frames) do
    local size = fixed_size(items)
    if size and frames[first + index - 1].size ~= size then
      return false
    end
  end
  return counts_fit(form, tvb, frames, first)
end

-- Returns the message that begins at first, its form, and the place of its command.
local function find_message(context, tvb, frames, first)
  local at = frames[first].size == 0 and first + 1 or first
  local frame = frames[at]
  local message = frame and frame.size == 1 and context.frames.messages[tvb(frame.body, 1):uint()]
  for _, form in ipairs(message and message.forms or {}) do
    if fits(form, tvb, frames, at + 1) then
      return message, form, at
    end
  end
  return nil, message and message.name or nil
end

local function are_routing_ids(frames, count)
  for index = 1, count do
    if frames[index].size > 255 then
      return false
    end
  end
  return frames[1].size > 0
end

-- The same for a message that may have routing ids before it.
local function find_routed(context, tvb, frames)
  local message, form, at = find_message(context, tvb, frames, 1)
  local name = form
  if message then
    return message, form, at, 0
  end
  local delimiter = 1
  while frames[delimiter] and frames[delimiter].size > 0 do
    delimiter = delimiter + 1
  end
  delimiter = frames[delimiter] and delimiter - 1 or 1
  for _, ids in ipairs({ delimiter, 1 }) do
    if ids > 0 and frames[ids + 1] and are_routing_ids(frames, ids) then
      message, form, at = find_message(context, tvb, frames, ids + 1)
      if message then
        return message, form, at, ids
      end
    end
  end
  return nil, name
end

local function add_body(context, node, items, tvb, frame)
  runtime.decode_all(context, node, items, tvb, frame.body, frame.stop)
end

local function add_message(context, tree, tvb, frames, nodes)
  local message, form, at, ids = find_routed(context, tvb, frames)
  if not message then
    local text = form and form .. " of other frames than these" or "not a command"
    runtime.expert(context, tree, "opcode", text)
    return "malformed message"
  end
  for index = 1, ids do
    nodes[index]:add(context.fields.routing_id, tvb(frames[index].body, frames[index].size))
  end
  nodes[at]:add(context.fields.message, tvb(frames[at].body, 1))
  tree:append_text(", " .. message.name)
  for index = at + 1, #frames do
    local items = form.frames[index - at] or form.repeated
    add_body(context, nodes[index], items, tvb, frames[index])
  end
  return message.name
end

local function add_publication(context, tree, tvb, frames, nodes)
  local items = context.frames.publication
  if #frames ~= #items then
    runtime.expert(context, tree, "malformed", "topic and data expected")
    return "malformed message"
  end
  for index, frame in ipairs(frames) do
    add_body(context, nodes[index], items[index], tvb, frame)
  end
  return "message"
end

local function is_subscription(tvb, frames)
  return #frames == 1 and frames[1].size > 0 and tvb(frames[1].body, 1):uint() <= 1
end

local function add_subscription(context, tree, tvb, frames, nodes)
  if not is_subscription(tvb, frames) then
    runtime.expert(context, tree, "malformed", "a subscription expected")
    return "malformed message"
  end
  local items = context.frames.subscription
  local frame = frames[1]
  runtime.decode_all(context, nodes[1], items, tvb, frame.body + 1, frame.stop)
  return tvb(frame.body, 1):uint() == 1 and "subscribe" or "cancel"
end

-- Without a READY in the capture, the form of a message decides what it is.
local function role_of(context, tvb, frames)
  local own = types[runtime.direction(context.pinfo)]
  if own and own ~= "" then
    return SUBSCRIBERS[own] and add_subscription or PUBLISHERS[own] and add_publication or add_message
  elseif find_routed(context, tvb, frames) then
    return add_message
  elseif #frames == 2 and frames[1].size > 0 then
    return add_publication
  end
  return is_subscription(tvb, frames) and add_subscription or add_message
end

-- See runtime.framings.
function zmtp.dissect(context, tree, tvb, at, stop)
  if is_greeting(tvb, at) then
    return add_greeting(context, tree, tvb, at, stop)
  end
  local frames, last, fault = read_unit(context, tvb, at)
  local nodes = add_frames(context, tree, tvb, frames, stop)
  if not last or last > stop then
    local from = #frames > 0 and math.min(frames[#frames].stop, stop) or at
    if from < stop then
      tree:add(context.fields.undecoded, tvb(from, stop - from))
    end
    if fault then
      runtime.expert(context, tree, fault[1], fault[2])
    end
    return fault and "malformed" or "truncated"
  end
  local messages, message_nodes, text = {}, {}, ""
  for index, frame in ipairs(frames) do
    if frame.command then
      text = add_command(context, nodes[index], tvb, frame)
    else
      messages[#messages + 1], message_nodes[#message_nodes + 1] = frame, nodes[index]
    end
  end
  if types[runtime.direction(context.pinfo)] == false then
    runtime.expert(context, tree, "malformed", "READY expected after the greeting")
  end
  if #messages == 0 then
    tree:append_text(", " .. text)
    return text
  end
  local role = role_of(context, tvb, messages)
  text = role(context, tree, tvb, messages, message_nodes)
  return runtime.summary(text, context.parts)
end

-- See runtime.framings.
function zmtp.recognise(context, tvb)
  local signature = #context.frames.signature
  if tvb:len() < signature or not is_greeting(tvb, 0) or greeting_fault(context, tvb, 0) then
    return false
  end
  return tvb(signature - 1, 1):uint() == context.frames.signature:byte(signature)
end
