-- Decides a list of costs for one key against all quotas of its policy, and charges what it admits (for `hold.lua` and
-- `once.lua`; checks alone are `window_check.lua`). `window_head.lua` precedes.
--
-- One script, because deciding and charging must be one step: two trips admit what both callers saw free.
--
-- ARGV  the costs, in order, as runs: cost, how many times
--
-- Reply {TIME, counted ...}      what each quota counted before: every cost was admitted, and each fits once more
--       {TIME, counted ..., state}
--                                the same with the state as it was before, false where there is none: when a cost was
--                                denied, is a peek, or would now be denied, and after a clock stepped back
--       {TIME, ''}               when what is there is nobody's count

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

-- Decide the costs in order; each is charged to all quotas or to none.
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

-- Writes what was charged.
local keep = write_columns
