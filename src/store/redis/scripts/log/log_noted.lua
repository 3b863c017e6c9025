-- What a charge left, for `hold.lua` and `once.lua`; `log.lua` precedes.

local charged = units

-- A log is written when it is charged.
local function keep()
end

local function mark(q, till)
  local marked = pair(logs[q], 0)
  redis.call('SETRANGE', KEYS[q], 0, struct.pack('>I8', math.max(marked, till)))
end

-- A charge is known by the instant at which it was noted.
local function noted(q)
  local log = logs[q]
  local at = math.max(now, log.latest)
  return log.entries < log.most and log.limit - log.units or 0, at + log.window - now, at, 0
end

