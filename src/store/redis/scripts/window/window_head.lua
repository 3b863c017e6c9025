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

local window = windows()
local kinds, limit, bucket = {}, {}, {}
for q = 1, quotas do
  kinds[q], limit[q] = tonumber(ARGV[2 * q]), tonumber(ARGV[2 * q + 1])
  bucket[q] = window.bucket_of(kinds[q], now)
end

-- What is there: its columns by their kinds, those of the policy as they are seen now; what else there was before; and
-- its mark. Or it is nobody's count.
local state_key = KEYS[1]
local state = state_of(state_key)
local columns, before, marked = {}, {}, 0
if state then
  if type(state) == 'string' then
    columns, before, marked = window.columns_of(state)
  else
    columns = nil
  end
end
local spoilt = not columns
if not spoilt then
  for q = 1, quotas do
    columns[kinds[q]] = window.seen_from(columns[kinds[q]], bucket[q])
  end
end

local function write_columns()
  window.write(redis.call, state_key, now, marked, kinds, before, columns)
end
