-- Decides a list of costs for one key against all quotas of its policy, and charges what it admits (`pair.lua`, for
-- `hold.lua` and `once.lua`; checks alone are `pair_check.lua`), or takes charges back (`pair_back.lua`, `back.lua`):
-- one script, because two trips admit what both callers saw free. The state
-- of a quota is a pair of numbers, 16 bytes, big-endian; and where charges may be taken back, a tail of its own.
--
-- KEYS  for each quota, its state
-- ARGV  number of quotas
--       for each quota  three parameters, which the algorithm below explains
--       the costs, in order, as runs: cost, how many times
--       [now]           instead of TIME, us; tests only
--
-- Reply {TIME, first and second number of each quota's state as it was before, and if any has one, the tail of each}
--
-- Every number stays below 2^53, where doubles are exact.

local quotas = tonumber(ARGV[1])
local runs = 2 + 3 * quotas
local now
if (#ARGV - runs) % 2 == 0 then
  now = tonumber(ARGV[#ARGV])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function parameter(q, number)
  return tonumber(ARGV[3 * q - 2 + number])
end

