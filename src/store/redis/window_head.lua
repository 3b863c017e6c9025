-- Sliding windows: the segments of one key, of all quotas of its policy, that TIME chooses. What is done with them
-- follows: `window.lua` decides and charges, `window_back.lua` takes back.
--
-- A segment is a String: 8 bytes kept for reservations, then one big-endian counter per bucket, up to the last one that
-- was charged. Counter i is what the segment admitted in its buckets 0 ..= i. Being running sums, the segment's total
-- is its last counter and any part of it one subtraction. They are u32, or u64 where the limit is 2^32 or more; a limit
-- that crosses that line counts under other keys.
--
-- KEYS  for each quota, its segments in ascending order: the one before `from`'s up to `to`'s
-- ARGV  from, to        the instants, us, between which the caller believes TIME to be; they chose KEYS
--       number of quotas
--       for each quota  length of a bucket, us; limit
--       what follows here is told there; an even number of them
--       [now]           instead of TIME, us; tests only
--
-- Reply {TIME}            when TIME is not within from .. to: nothing was done. Else what follows says.
--
-- Every number stays below 2^53 (TIME is 1.8e15, limits and costs at most 1e15), where doubles are exact; so are
-- floor(a / b) for such a and b.

local HEADER = 8

local from, to, quotas = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local runs = 4 + 2 * quotas
local now
if (#ARGV - runs) % 2 == 0 then
  now = tonumber(ARGV[#ARGV])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if now < from or now > to then
  return {now}
end

-- The segments that TIME chooses: the one before, the current one, and the one after where it was sent.
local length, limit, segment, bucket, place = {}, {}, {}, {}, {}
local wanted, at = {}, {}
local base = 1
for q = 1, quotas do
  local f = tonumber(ARGV[2 + 2 * q])
  local whole = f * 64
  local first, last = math.floor(from / whole) - 1, math.floor(to / whole)
  local current = math.floor(now / whole)
  length[q], limit[q], segment[q] = whole, tonumber(ARGV[3 + 2 * q]), current
  bucket[q] = math.floor((now - current * whole) / f)
  place[q] = base + current - first
  at[q] = #wanted + 1
  for key = place[q] - 1, place[q] + (current < last and 1 or 0) do
    wanted[#wanted + 1] = KEYS[key]
  end
  base = base + last - first + 1
end
at[quotas + 1] = #wanted + 1
local read = redis.call('MGET', unpack(wanted))

