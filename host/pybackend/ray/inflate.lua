-- Reads the beginning of what was compressed with gzip or zlib (RFC 1950 to 1952), for HAProxy, which cannot. Checksums are not read.

local LENGTHS, DISTANCES = {[28] = {258, 0}}, {} -- for each symbol the least value, and the number of bits that follow
local least = 3
for symbol = 0, 27 do
  local extra = math.max(0, (symbol >> 2) - 1)
  LENGTHS[symbol], least = {least, extra}, least + (1 << extra)
end
least = 1
for symbol = 0, 29 do
  local extra = math.max(0, (symbol >> 1) - 1)
  DISTANCES[symbol], least = {least, extra}, least + (1 << extra)
end

local ORDER = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
local LONGEST = 15

-- A canonical code: how many symbols have each length, and the symbols in the order of their codes.
local function code_of(lengths, first, last)
  local counts, places, symbols = {}, {}, {}
  for length = 0, LONGEST do counts[length] = 0 end
  for symbol = first, last do counts[lengths[symbol]] = counts[lengths[symbol]] + 1 end
  places[1] = 0
  for length = 1, LONGEST - 1 do places[length + 1] = places[length] + counts[length] end
  for symbol = first, last do
    local length = lengths[symbol]
    if length > 0 then
      symbols[places[length]] = symbol - first
      places[length] = places[length] + 1
    end
  end
  return {counts = counts, symbols = symbols}
end

local function fixed_codes()
  local lengths = {}
  for symbol = 0, 287 do lengths[symbol] = symbol < 144 and 8 or symbol < 256 and 9 or symbol < 280 and 7 or 8 end
  for symbol = 288, 317 do lengths[symbol] = 5 end
  return code_of(lengths, 0, 287), code_of(lengths, 288, 317)
end

-- Appends the bytes of the blocks to out, until there are so many. Raises an error where the text ends, or is none of DEFLATE.
local function blocks(text, place, most, out)
  local held, count = 0, 0

  local function bits(wanted)
    while count < wanted do
      held, place, count = held | (text:byte(place) << count), place + 1, count + 8
    end
    local value = held & ((1 << wanted) - 1)
    held, count = held >> wanted, count - wanted
    return value
  end

  local function symbol_of(code)
    local value, first, index = 0, 0, 0
    for length = 1, LONGEST do
      if count == 0 then held, place, count = text:byte(place), place + 1, 8 end
      value, held, count = value | (held & 1), held >> 1, count - 1
      local here = code.counts[length]
      if value - first < here then return code.symbols[index + value - first] end
      index, first, value = index + here, (first + here) << 1, value << 1
    end
    error("no code")
  end

  local function written_codes()
    local literals, distances, written = bits(5) + 257, bits(5) + 1, bits(4) + 4
    local lengths = {}
    for symbol = 0, 18 do lengths[symbol] = 0 end
    for number = 1, written do lengths[ORDER[number]] = bits(3) end
    local code = code_of(lengths, 0, 18)
    lengths = {}
    local symbol = 0
    while symbol < literals + distances do
      local found = symbol_of(code)
      local length, times = found, 1
      if found == 16 then
        length, times = lengths[symbol - 1], 3 + bits(2)
      elseif found == 17 then
        length, times = 0, 3 + bits(3)
      elseif found == 18 then
        length, times = 0, 11 + bits(7)
      end
      for _ = 1, times do
        lengths[symbol], symbol = length, symbol + 1
      end
    end
    return code_of(lengths, 0, literals - 1), code_of(lengths, literals, literals + distances - 1)
  end

  local last
  repeat
    last = bits(1)
    local kind = bits(2)
    if kind == 0 then
      held, count = 0, 0
      local size = bits(16)
      place = place + 2 -- the size once more, inverted
      for _ = 1, math.min(size, most - #out) do
        out[#out + 1], place = text:byte(place), place + 1
      end
    else
      local literals, distances
      if kind == 1 then literals, distances = fixed_codes() else literals, distances = written_codes() end
      while #out < most do
        local symbol = symbol_of(literals)
        if symbol < 256 then
          out[#out + 1] = symbol
        elseif symbol == 256 then
          break
        else
          local length = LENGTHS[symbol - 257]
          local size = length[1] + bits(length[2])
          local distance = DISTANCES[symbol_of(distances)]
          local behind = distance[1] + bits(distance[2])
          for _ = 1, size do out[#out + 1] = out[#out + 1 - behind] end
        end
      end
    end
  until last == 1 or #out >= most
  return last == 1 and #out < most
end

local function start_of_blocks(text, place)
  if text:byte(place) ~= 0x1f or text:byte(place + 1) ~= 0x8b then return place + 2 end
  local flags = text:byte(place + 3)
  place = place + 10
  if flags & 4 > 0 then place = place + 2 + string.unpack("<I2", text, place) end
  for _, flag in ipairs({8, 16}) do -- a name, a comment
    if flags & flag > 0 then place = text:find("\0", place, true) + 1 end
  end
  return flags & 2 > 0 and place + 2 or place
end

-- Up to so many of the first bytes of what was compressed, and whether these are all; place: where the text begins.
function inflated(text, place, most)
  local out = {}
  local fine, whole = pcall(function() return blocks(text, start_of_blocks(text, place), most, out) end)
  local parts = {}
  for first = 1, #out, 1000 do
    parts[#parts + 1] = string.char(table.unpack(out, first, math.min(first + 999, #out)))
  end
  return table.concat(parts), fine and whole
end
