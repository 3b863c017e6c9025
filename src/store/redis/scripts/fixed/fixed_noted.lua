-- The results of a charge, for `hold.lua` and `once_note.lua`. It follows `pair_noted.lua`.

local function mark(q, till)
  local marked = tail[q] ~= '' and struct.unpack('>I8', tail[q]) or 0
  tail[q] = struct.pack('>I8', math.max(marked, till))
end

local function noted(q)
  local left, reset = standing_after(q)
  return left, reset, 0, 0
end

