-- Operations on fixed windows and token buckets other than plain checks. Either `pair.lua` follows,
-- which decides and charges, or `pair_back.lua`, which refunds.
--
-- KEYS  the state
--
-- ARGV  from, to: the bounds, us, within which the caller expects TIME
--       number of quotas
--       for each quota: its six numbers
--       the arguments of the following part, an even number
--       [now]   instead of TIME, us; tests only
--
-- Reply {TIME}       TIME is outside from .. to. Nothing was done.
--       {TIME, ''}   The value is corrupt.

local quotas = tonumber(ARGV[3])
local runs = 4 + 6 * quotas
local now
if (#ARGV - runs) % 2 == 0 then
  now = tonumber(ARGV[#ARGV])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if now < tonumber(ARGV[1]) or now > tonumber(ARGV[2]) then
  return {now}
end

