-- What a charge left, for `hold.lua` and `once.lua`. The tail of a state: the mark, the ledger's first and last number, and
-- its refunds; see the core's `ledger.rs`.

local function note(q, till)
  local marked, born, last = 0, nil, 0
  if tail[q] then
    marked, born, last = struct.unpack('>I8I8I8', tail[q])
  end
  local number = math.max(last + 1, now)
  redis.call('SETRANGE', KEYS[q], 16, struct.pack('>I8I8I8', math.max(marked, till), born or number, number))
  return number
end

local mark = note

local function noted(q)
  return room[q] - charged, lives[q], note(q, 0), second[q]
end

