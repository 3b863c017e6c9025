-- Refunds charges of one key to the quotas of its policy, as one step. The algorithm's part
-- follows, and `back.lua` ends it.
--
-- These arguments follow those of the algorithm's part. The script reads them from the end:
--
-- KEYS  ..., [the record of the id], the instant of the last reset.
--
-- ARGV  one of:
--       ..., TTL of a reset's instant, ms, 'reset'
--       ..., cost, 'cost'                     refunds from the oldest charge on
--       ..., instant, cost, number and debt in each quota, quotas, 'charge'
--                                             refunds exactly this charge
--       ..., as for 'charge', instant of the decision, end of the mark, 'lease'
--                                             refunds unspent units of a lease
--       ..., name of each quota's counter, quotas, 'id'
--                                             refunds the charge of the record, once
--
-- Reply {TIME, units refunded to the quota that received most, the states after that}.

local function argument()
  return table.remove(ARGV)
end

local how, reset_key = argument(), table.remove(KEYS)
local cost, made, life, record, record_key = 0, nil, nil, nil, nil
-- For a lease: when it was decided, and from when on no return is accepted.
local decided, till
local number, owed_then = {}, {}
-- The list of a drain's record, and the units that each quota took.
local drained, parts = nil, {}

if how == 'reset' then
  life = argument()
elseif how == 'cost' then
  cost = tonumber(argument())
elseif how == 'charge' or how == 'lease' then
  if how == 'lease' then
    till, decided = tonumber(argument()), tonumber(argument())
  end
  for q = tonumber(argument()), 1, -1 do
    owed_then[q], number[q] = tonumber(argument()), tonumber(argument())
  end
  cost, made = tonumber(argument()), tonumber(argument())
else
  record_key = table.remove(KEYS)
  record, drained = record_of(record_key)
  for q = tonumber(argument()), 1, -1 do
    local name = argument()
    for r = 4, record and #record or 0, 8 do
      if record[r] == name then
        number[q], owed_then[q] = record[r + 6], record[r + 7]
        parts[q] = drained and drained[(r - 4) / 4 + 1]
      end
    end
  end
  if record and record[3] == 0 then
    cost, made = record[1], record[2]
  end
end

local reset = made and redis.call('GET', reset_key)
if reset and (decided or made) <= tonumber(reset) then
  cost = 0
end

