-- What is done with fixed windows or token buckets besides checks, which `pair_check.lua` does: `pair.lua` decides and
-- charges, `pair_back.lua` takes back.
--
-- KEYS  the state
-- ARGV  from, to: the instants, us, between which the caller believes TIME to be
--       number of quotas
--       for each quota  its six numbers
--       what follows here is told there; an even number of them
--       [now]           instead of TIME, us; tests only
--
-- Reply {TIME}          when TIME is not within from .. to: nothing was done
--       {TIME, ''}      when what is there is nobody's count

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

