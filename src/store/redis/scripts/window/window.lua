-- Decides a list of costs for one key against all quotas of its policy, and charges the allowed
-- ones. It serves `hold.lua` and `once.lua`, and follows `window_head.lua`. Plain checks use
-- `window_check.lua`.
--
-- Deciding and charging must be one step. With two trips, two callers spend the same free units.
--
-- ARGV  the costs, in order, as runs: cost, repetitions.
--
-- Reply {TIME, counted ...}          The former count of each quota. Every cost was allowed, and
--                                    each fits once more.
--       {TIME, counted ..., state}   The same with the former state, false without one. A cost was
--                                    denied, is 0, or would now be denied, or a clock stepped back.
--       {TIME, ''}                   The value is corrupt.

if spoilt then
  return {now, ''}
end

local reply = {now}
local tell, room = false, math.huge
for q = 1, quotas do
  local column = columns[kinds[q]]
  reply[q + 1] = window.counted_at(column, bucket[q])
  room = math.min(room, limit[q] - reply[q + 1])
  tell = tell or column ~= nil and column.last > bucket[q]
end

-- Decides the costs in order. Each is charged to all quotas or to none.
local charged, dearest = 0, 0
for r = runs, #ARGV - 1, 2 do
  local cost, times = tonumber(ARGV[r]), tonumber(ARGV[r + 1])
  if cost == 0 then
    tell = true
  else
    local fit = math.min(times, math.floor((room - charged) / cost))
    charged = charged + math.max(fit, 0) * cost
    dearest = math.max(dearest, cost)
  end
end

if charged > 0 then
  for q = 1, quotas do
    columns[kinds[q]] = window.charged_in(columns[kinds[q]], kinds[q], bucket[q], charged)
  end
end
if tell or charged + dearest > room then
  reply[#reply + 1] = state
end

-- Writes the charge.
local keep = write_columns
