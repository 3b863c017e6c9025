-- Operations on sliding windows other than plain checks, in the format of `window_state.lua`.
-- Either `window.lua` follows, which decides and charges, or `window_back.lua`, which refunds.
--
-- KEYS  the state
--
-- ARGV  number of quotas
--       for each quota: its kind; limit
--       the arguments of the following part, an even number
--       [now]   instead of TIME, us; tests only

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

-- The columns by their kinds, those of the policy as seen now; the other former kinds; and the
-- mark. `spoilt` if the value is corrupt.
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
    columns[kinds[q]] = window.own_column(columns, kinds[q], bucket[q])
  end
end

local function write_columns()
  window.write(redis.call, state_key, now, marked, kinds, before, columns)
end
