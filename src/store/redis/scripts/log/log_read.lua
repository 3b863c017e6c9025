-- Reads a sliding log for GET /v1/usage. `log_head.lua` describes the format.
--
-- KEYS  a log, its metas
--
-- ARGV  which 1000 of the metas, from the newest on: 0, 1 ...
--       [now]  instead of TIME, us; tests only
--
-- Reply {TIME, the newest 100 entries and the pair before them, metas}
--       {TIME}  the metas are corrupt
--
-- Portions of metas keep each call short for other callers.

local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local last = -1000 * tonumber(ARGV[1]) - 1
local metas = redis.call('LRANGE', KEYS[2], last - 999, last)
for _, meta in ipairs(metas) do
  if #meta < 24 or #meta > 1048 then
    return {now}
  end
end
return {now, redis.call('GETRANGE', KEYS[1], -101 * 16, -1), metas}
