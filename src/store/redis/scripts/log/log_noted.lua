-- The results of a charge, for `hold.lua` and `once_note.lua`. `log.lua` has written it by then.

local function mark(q, till)
  local marked = pair(logs[q], 0)
  redis.call('SETRANGE', KEYS[q], 0, struct.pack('>I8', math.max(marked, till)))
end

-- The recorded instant identifies a charge.
local function noted(q)
  local log = logs[q]
  local at = math.max(now, log.latest)
  return log.entries < log.most and log.limit - log.units or 0, at + log.window - now, at, 0
end

