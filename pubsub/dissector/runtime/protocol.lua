-- Registers a protocol with Wireshark: fields, experts, preferences, ports; takes its streams apart.
--
-- runtime.framings has for each kind of framing
--   measure(context, tvb, at)              the length of the unit at the position, which may end
--                                          behind the buffer; nil if it is not known yet
--   dissect(context, tree, tvb, at, stop)  adds the unit's fields, and returns its text for Info
--   recognise(context, tvb)                whether bytes that are nobody else's look like a unit
--   init()                                 optional; a capture is read from its beginning

local MEBIBYTE = 1048576
local IN_INFO = 8
local EXPERTS = {
  magic = { "A packet of another protocol", expert.group.MALFORMED, expert.severity.ERROR },
  opcode = { "Unknown type", expert.group.MALFORMED, expert.severity.ERROR },
  length = { "Length over its limit", expert.group.MALFORMED, expert.severity.ERROR },
  malformed = { "Malformed", expert.group.MALFORMED, expert.severity.ERROR },
  token = { "Malformed token", expert.group.SECURITY, expert.severity.WARN },
  checksum = { "Wrong checksum", expert.group.CHECKSUM, expert.severity.ERROR },
  truncated = { "Incomplete", expert.group.MALFORMED, expert.severity.WARN },
  cut = { "Not captured in full", expert.group.UNDECODED, expert.severity.NOTE },
  sender = { "Sent by the wrong side", expert.group.PROTOCOL, expert.severity.WARN },
  refused = { "Refused", expert.group.RESPONSE_CODE, expert.severity.NOTE },
}
local COMMON = {
  { name = "undecoded", type = "bytes", title = "Undecoded" },
}
local stream_of = Field.new("tcp.stream")

-- Returns a key for the packets that go this way on this connection.
function runtime.direction(pinfo)
  local stream = stream_of()
  local number = stream and tostring(stream.value) or "-"
  return table.concat({ number, tostring(pinfo.src), pinfo.src_port, tostring(pinfo.dst), pinfo.dst_port }, " ")
end

local function make_fields(protocol, declaration)
  local listed = {}
  for _, source in ipairs({ COMMON, declaration.fields }) do
    for _, field in ipairs(source) do
      local abbreviation = protocol.name .. "." .. field.name
      local make = ProtoField[field.type]
      local made
      if field.type == "bool" then
        made = field.mask and make(abbreviation, field.title, 8, nil, field.mask)
          or make(abbreviation, field.title)
      elseif field.type == "absolute_time" then
        made = make(abbreviation, field.title, base.UTC)
      elseif field.type:find("int") then
        made = make(abbreviation, field.title, base[field.base or "DEC"], field.values)
      else
        made = make(abbreviation, field.title)
      end
      protocol.fields[field.name] = made
      listed[#listed + 1] = made
    end
  end
  protocol.proto.fields = listed
end

local function make_experts(protocol)
  local listed = {}
  for name, each in pairs(EXPERTS) do
    local made = ProtoExpert.new(protocol.name .. ".expert." .. name, each[1], each[2], each[3])
    protocol.experts[name] = made
    listed[#listed + 1] = made
  end
  protocol.proto.experts = listed
end

local function make_preferences(proto, declaration)
  local port = tostring(declaration.port)
  proto.prefs.tcp_ports = Pref.range("TCP ports", port, "TCP ports of listeners", 65535)
  if declaration.udp then
    proto.prefs.udp_ports = Pref.range("UDP ports", port, "UDP ports of listeners", 65535)
  end
  proto.prefs.tls_ports = Pref.range("TLS ports", "", "TCP ports of listeners with TLS", 65535)
  for _, option in ipairs(declaration.options) do
    local made
    if option.choices then
      local choices = {}
      for index, choice in ipairs(option.choices) do
        choices[index] = { index, choice, index }
      end
      made = Pref.enum(option.title, option.default, option.help, choices, false)
    else
      made = Pref.uint(option.title, option.default, option.help)
    end
    proto.prefs[option.preference] = made
  end
  proto.prefs.longest = Pref.uint("Longest unit", 16, "MiB of a frame or line that are put together")
  proto.prefs.heuristic = Pref.bool("Look on other ports", false, "Find listeners by what they send")
end

local function read_options(protocol, declaration)
  local prefs, options, key = protocol.proto.prefs, {}, {}
  for _, option in ipairs(declaration.options) do
    local value = prefs[option.preference]
    options[option.name] = option.choices and option.choices[value] or value
    if option.variant then
      key[#key + 1] = options[option.name]
    end
  end
  protocol.options = options
  protocol.frames = declaration.variants[table.concat(key, "/")]
end

-- Returns a unit's text for Info.
function runtime.summary(name, parts)
  local listed = table.concat(parts, " ", 1, math.min(#parts, IN_INFO))
  return name .. (listed ~= "" and " " .. listed or "")
end

local function add_info(context, text)
  local pinfo = context.pinfo
  context.shown = context.shown + 1
  if context.shown == 1 then
    pinfo.cols.protocol = context.protocol.label
    pinfo.cols.info:clear()
    context.before = #tostring(pinfo.cols.info) > 0
  end
  if context.shown <= IN_INFO then
    pinfo.cols.info:append((context.before and ", " or "") .. text)
    context.before = true
  end
end

local function finish_info(context)
  if context.shown > IN_INFO then
    context.pinfo.cols.info:append(string.format(", and %d more", context.shown - IN_INFO))
  end
  if context.shown > 0 then
    context.pinfo.cols.info:fence()
  end
end

local function sender_of(pinfo)
  if pinfo.dst_port == pinfo.match then
    return "client"
  end
  return pinfo.src_port == pinfo.match and "broker" or nil
end

local function new_context(protocol, pinfo)
  local context = { protocol = protocol, pinfo = pinfo, shown = 0, sender = sender_of(pinfo) }
  context.fields, context.experts = protocol.fields, protocol.experts
  context.options, context.frames = protocol.options, protocol.frames
  return context
end

local function add_unit(context, tvb, tree, at, stop, incomplete)
  local node = tree:add(context.protocol.proto, tvb(at, stop - at))
  context.parts, context.truncated = {}, incomplete ~= nil
  if incomplete then
    runtime.expert(context, node, incomplete, "the end is missing")
  end
  local text = context.protocol.framing.dissect(context, node, tvb, at, stop)
  add_info(context, text)
end

-- Dissects the units in a buffer. Bytes at its end that are not a unit are left to the transport to
-- complete, if it can.
local function dissect(protocol, tvb, pinfo, tree)
  local context = new_context(protocol, pinfo)
  local at, total = 0, tvb:len()
  local cut = tvb:reported_len() > total
  local longest = protocol.proto.prefs.longest * MEBIBYTE
  while at < total do
    local length = protocol.framing.measure(context, tvb, at)
    if length and at + length <= total then
      add_unit(context, tvb, tree, at, at + length)
      at = at + length
    else
      local wanted = length or total - at
      if not cut and pinfo.can_desegment > 0 and wanted <= longest then
        pinfo.desegment_offset = at
        -- A smaller number than the unit lacks would have TCP lose the rest of a segment.
        pinfo.desegment_len = length and at + length - total or DESEGMENT_ONE_MORE_SEGMENT
      else
        add_unit(context, tvb, tree, at, total, cut and "cut" or "truncated")
      end
      break
    end
  end
  finish_info(context)
  return total
end

local function register_ports(protocol, declaration)
  local proto, before = protocol.proto, protocol.ports
  local prefs = proto.prefs
  local tcp, tls = DissectorTable.get("tcp.port"), DissectorTable.get("tls.port")
  local udp = declaration.udp and DissectorTable.get("udp.port")
  local tls_dissector = Dissector.get("tls")
  local now = { tcp = prefs.tcp_ports, udp = udp and prefs.udp_ports or "", tls = prefs.tls_ports }
  local function change(method, ports)
    if (ports.tcp or "") ~= "" then
      tcp[method](tcp, ports.tcp, proto)
    end
    if udp and (ports.udp or "") ~= "" then
      udp[method](udp, ports.udp, proto)
    end
    if (ports.tls or "") ~= "" then
      tcp[method](tcp, ports.tls, tls_dissector)
      tls[method](tls, ports.tls, proto)
    end
  end
  change("remove", before)
  change("add", now)
  protocol.ports = now
end

local function register_heuristic(protocol, transport)
  protocol.proto:register_heuristic(transport, function(tvb, pinfo, tree)
    if not protocol.proto.prefs.heuristic or tvb:len() == 0 then
      return false
    end
    local context = new_context(protocol, pinfo)
    context.sender = nil
    if not protocol.framing.recognise(context, tvb) then
      return false
    end
    pinfo.conversation = protocol.proto
    dissect(protocol, tvb, pinfo, tree)
    return true
  end)
end

function runtime.register(declaration)
  local proto = Proto("pubsub." .. declaration.name, "pubsub " .. declaration.name)
  local protocol = { name = "pubsub." .. declaration.name, proto = proto, label = declaration.label }
  protocol.fields, protocol.experts, protocol.ports = {}, {}, {}
  protocol.framing = runtime.framings[declaration.framing]
  make_fields(protocol, declaration)
  make_experts(protocol)
  make_preferences(proto, declaration)
  read_options(protocol, declaration)
  function proto.dissector(tvb, pinfo, tree)
    return dissect(protocol, tvb, pinfo, tree)
  end
  if declaration.udp then
    register_heuristic(protocol, "udp")
  end
  function proto.init()
    if protocol.framing.init then
      protocol.framing.init()
    end
  end
  function proto.prefs_changed()
    read_options(protocol, declaration)
    register_ports(protocol, declaration)
  end
  register_ports(protocol, declaration)
  DissectorTable.get("tls.port"):add_for_decode_as(proto)
  register_heuristic(protocol, "tcp")
end
