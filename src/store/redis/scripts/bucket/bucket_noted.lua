-- The results of a charge, for `hold.lua` and `once.lua`. It follows `pair.lua`.

local function note(q, till)
  local marked, born, last, at, shift, turned, rebased, holes = 0, nil, 0, now, 0, 0, 0, 57
  if tail[q] ~= '' then
    marked, born, last, at, shift, turned, rebased, holes = struct.unpack(NUMBERS, tail[q])
  end
  local number = math.max(last + 1, now)
  local ledger = struct.pack(NUMBERS, math.max(marked, till), born or number, number, at, shift, turned, rebased)
  tail[q] = ledger .. string.sub(tail[q], holes)
  return number, shift
end

local mark = note

local function noted(q)
  local left, reset = standing_after(q)
  local number, shift = note(q, 0)
  return left, reset, number, second[q] + shift
end

