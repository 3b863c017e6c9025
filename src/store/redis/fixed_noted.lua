-- What a charge left, for `hold.lua` and `once.lua`. The tail of a state: the mark.

local function mark(q, till)
  local marked = tail[q] and struct.unpack('>I8', tail[q]) or 0
  redis.call('SETRANGE', KEYS[q], 16, struct.pack('>I8', math.max(marked, till)))
end

local function noted(q)
  return room[q] - charged, lives[q], 0, 0
end

