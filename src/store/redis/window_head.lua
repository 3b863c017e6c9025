-- Sliding windows, as `window_state.lua` has them. What is done with them follows: `window.lua` decides and charges,
-- `window_back.lua` takes back.
--
-- KEYS  the state
-- ARGV  number of quotas
--       for each quota  its kind; limit
--       what follows here is told there; an even number of them
--       [now]           instead of TIME, us; tests only

local quotas = tonumber(ARGV[1])
local runs = 2 + 2 * quotas
local now
if (#ARGV - runs) % 2 == 0 then
  now = tonumber(ARGV[#ARGV])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local state_key = KEYS[1]
local state = redis.call('GET', state_key)
local columns, before, marked = {}, {}, 0
if state then
  columns, before = columns_of(state)
  if not columns then
    return {now, ''}
  end
  marked = read_at('>I8', state)
end
local kinds, limit, bucket = {}, {}, {}
for q = 1, quotas do
  kinds[q], limit[q] = tonumber(ARGV[2 * q]), tonumber(ARGV[2 * q + 1])
  bucket[q] = bucket_of(kinds[q], now)
end
