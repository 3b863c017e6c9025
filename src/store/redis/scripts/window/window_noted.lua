-- The results of a charge, for `hold.lua` and `once_note.lua`: the remaining units of each quota,
-- and us until it is whole.
local left, reset = {}, {}

-- All quotas share one mark.
local function mark(q, till)
  if q == 1 then
    local marked = read_at('>I8', redis.call('GETRANGE', KEYS[1], '0', '7'))
    redis.call('SETRANGE', KEYS[1], '0', pack('>I8', math.max(marked, till)))
  end
end

local function noted(q)
  return left[q], reset[q], 0, 0
end

