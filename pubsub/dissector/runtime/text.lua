-- Bytes and text. Wireshark has Lua 5.2 or 5.4: nothing here is missing in one of them.

-- The well-formed sequences of UTF-8.
local SEQUENCES = {
  "^[\194-\223][\128-\191]",
  "^\224[\160-\191][\128-\191]",
  "^[\225-\236\238\239][\128-\191][\128-\191]",
  "^\237[\128-\159][\128-\191]",
  "^\240[\144-\191][\128-\191][\128-\191]",
  "^[\241-\243][\128-\191][\128-\191][\128-\191]",
  "^\244[\128-\143][\128-\191][\128-\191]",
}

local function sequence_end(text, at)
  for _, pattern in ipairs(SEQUENCES) do
    local _, last = text:find(pattern, at)
    if last then
      return last
    end
  end
  return nil
end

-- Returns the number of bytes from the start that are UTF-8.
local function utf8_length(text)
  local at = 1
  while true do
    local first = text:find("[\128-\255]", at)
    if not first then
      return #text
    end
    local last = sequence_end(text, first)
    if not last then
      return first - 1
    end
    at = last + 1
  end
end

function runtime.is_utf8(text)
  return utf8_length(text) == #text
end

local SHOWN = 64

-- Returns the beginning of printable text in quotation marks, or nil.
function runtime.preview(text)
  local start = text:sub(1, SHOWN)
  local length = utf8_length(start)
  -- The cut may be within a character.
  if length < #start and (#text <= SHOWN or #start - length > 3) then
    return nil
  end
  start = start:sub(1, length)
  if start == "" or start:find("[%z\1-\8\11\12\14-\31\127]") then
    return nil
  end
  return '"' .. start:gsub("[\t\r\n]", " ") .. (#text > length and '"...' or '"')
end

-- Returns the UTF-8 of a code point.
function runtime.character(code)
  local tail = ""
  local first, limit = 0, 0x80
  if code >= 0x80 then
    first, limit = 0xC0, 0x20
    while true do
      tail = string.char(0x80 + code % 0x40) .. tail
      code = math.floor(code / 0x40)
      if code < limit then
        break
      end
      first, limit = first + limit, limit / 2
    end
  end
  return string.char(math.floor(first + code)) .. tail
end

function runtime.count(number, noun)
  return number == 1 and ("1 " .. noun) or string.format("%d %ss", number, noun)
end

function runtime.is_base64(text)
  return text ~= "" and #text % 4 == 0 and text:find("^[%w+/]+=?=?$") ~= nil
end

-- Returns what base64 decodes to; text must be base64 with padding.
function runtime.from_base64(text)
  return ByteArray.new(text, true):base64_decode():raw()
end

-- Exclusive or: an operator of Lua 5.4, which is a syntax error in 5.2, and a library there.
local xor = bit32 and bit32.bxor or load("return function(a, b) return a ~ b end")()
local crc_table

local function make_crc_table()
  crc_table = {}
  for index = 0, 255 do
    local value = index
    for _ = 1, 8 do
      local odd = value % 2 == 1
      value = math.floor(value / 2)
      value = odd and xor(value, 0xEDB88320) or value
    end
    crc_table[index] = value
  end
end

-- Returns the CRC-32 of zlib.
function runtime.crc32(text)
  if not crc_table then
    make_crc_table()
  end
  local crc = 0xFFFFFFFF
  for at = 1, #text do
    crc = xor(math.floor(crc / 256), crc_table[xor(crc % 256, text:byte(at))])
  end
  return xor(crc, 0xFFFFFFFF)
end
