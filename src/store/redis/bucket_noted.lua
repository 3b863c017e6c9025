-- What a charge left, for `hold.lua` and `once.lua`. The tail of a state: the mark, the ledger's other numbers, and its
-- holes, each what is owed before it and how much it is; see the core's `ledger.rs`.

local function note(q, till)
  local marked, born, last, at, shift, turned, rebased = 0, nil, 0, now, 0, 0, 0
  if tail[q] then
    marked, born, last, at, shift, turned, rebased = struct.unpack(NUMBERS, tail[q])
  end
  local number = math.max(last + 1, now)
  local ledger = struct.pack(NUMBERS, math.max(marked, till), born or number, number, at, shift, turned, rebased)
  redis.call('SETRANGE', KEYS[q], 16, ledger)
  return number, shift
end

local mark = note

local function noted(q)
  local number, shift = note(q, 0)
  return room[q] - charged, lives[q], number, second[q] + shift
end
