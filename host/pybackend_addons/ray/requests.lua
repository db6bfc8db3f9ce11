-- Finds the model and the correlation id in the beginning of an infer request's body, for HAProxy.
--
-- Sets txn.model; txn.sequence to "model id"; txn.unread to "yes" if the body is compressed or longer than what HAProxy holds, and the
-- id is not in the part that it holds.

local function varint(text, place)
  local value, shift = 0, 0
  while true do
    local byte = text:byte(place)
    if byte == nil or shift > 63 then return nil end
    value = value | ((byte & 0x7f) << shift)
    place = place + 1
    if byte < 0x80 then return value, place end
    shift = shift + 7
  end
end

-- Calls take(number, value) for each field of a message of Protobuf, until take returns true or the text ends.
local function fields(text, place, stop, take)
  while place < stop do
    local tag, value
    tag, place = varint(text, place)
    if tag == nil then return end
    local kind = tag & 7
    if kind == 0 then
      value, place = varint(text, place)
      if value == nil then return end
    elseif kind == 1 then
      place = place + 8
    elseif kind == 2 then
      local size
      size, place = varint(text, place)
      if size == nil or size < 0 or place + size > #text + 1 then return end
      value = text:sub(place, place + size - 1)
      place = place + size
    elseif kind == 5 then
      place = place + 4
    else
      return
    end
    if value ~= nil and take(tag >> 3, value) then return end
  end
end

-- The values of an InferParameter that can be an id: int64_param, uint64_param, string_param.
local KINDS = {[2] = true, [5] = true, [3] = true}

local function in_message(text, place)
  local model, id
  fields(text, place, #text + 1, function(number, value)
    if number == 1 then
      model = value
    elseif number == 4 and type(value) == "string" then
      local name, parameter
      fields(value, 1, #value + 1, function(part, inner)
        if part == 1 then name = inner elseif part == 2 then parameter = inner end
      end)
      if name == "sequence_id" and type(parameter) == "string" then
        fields(parameter, 1, #parameter + 1, function(kind, inner)
          if KINDS[kind] then id = tostring(inner) end
        end)
      end
    end
  end)
  return model, id
end

local function note(txn, model, id, whole)
  if model ~= nil or whole then txn:set_var("txn.model", model or "") end
  if id ~= nil and id ~= "0" and id ~= "" then
    txn:set_var("txn.sequence", (model or "") .. " " .. id)
  elseif not whole then
    txn:set_var("txn.unread", "yes")
  end
end

local function is_whole(txn, body)
  local announced = tonumber(txn.f:req_body_size() or "")
  return announced == nil or announced <= #body
end

core.register_action("read_message", {"http-req"}, function(txn)
  local body = txn.f:req_body() or ""
  if body:byte(1) == 1 then return note(txn, nil, nil, false) end
  local model, id = in_message(body, 6)
  note(txn, model, id, is_whole(txn, body))
end)

core.register_action("read_document", {"http-req"}, function(txn)
  local body = txn.f:req_body() or ""
  local header = tonumber(txn.f:req_hdr("inference-header-content-length") or "")
  local whole = is_whole(txn, body) or header ~= nil and #body >= header
  if header ~= nil then body = body:sub(1, header) end
  if txn.f:req_hdr("content-encoding") ~= nil then whole = false end
  local place = body:find('"sequence_id"%s*:')
  local id
  if place ~= nil then
    local rest = body:sub(place):match('^"sequence_id"%s*:%s*(.*)') or ""
    id = rest:match('^%d+') or rest:match('^"([^"\\]*)"')
    if id == nil then whole = false end -- an id with escapes is not read
  end
  note(txn, txn:get_var("txn.model"), id, whole)
end)
