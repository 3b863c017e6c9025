-- A drain in sliding logs. It follows `log_charge.lua`.
--
-- ARGV  cost, 1, meta (empty: none).
--
-- Reply as that of `log.lua` with instants for the cost.

local cost, meta = tonumber(ARGV[runs]), ARGV[runs + 2]
local reply, marked, parts, fits = {now}, 0, {}, true
for q = 1, quotas do
  local log = open(q)
  if not log then
    return {now, ''}
  end
  logs[q] = log
  reply[#reply + 1] = log.units
  reply[#reply + 1] = log.entries
  reply[#reply + 1] = log.latest
  marked = log.entries > 0 and math.max(marked, log.mark) or marked
  parts[q] = log.entries < log.most and math.max(0, math.min(cost, log.limit - log.units)) or 0
  fits = fits and parts[q] == cost
end

-- Reads the notes before it charges, since another program may have written there.
local is_noted, old_notes = meta ~= '' and (parts[metas_of] or 0) > 0, {}
if is_noted then
  old_notes = redis.call('LRANGE', KEYS[quotas + 1], 0, 1)
  for _, old in ipairs(old_notes) do
    if #old < 24 then
      return {now, ''}
    end
  end
end

local results = {}
for q, log in ipairs(logs) do
  local latest = log.latest
  if parts[q] > 0 then
    local charges = {{cost = parts[q], times = 1, meta = meta}}
    local names, ttl = append(log, charges, parts[q])
    latest = math.max(now, latest)
    if q == metas_of and is_noted then
      note(log, charges, names, ttl, old_notes)
    end
  end
  local left = log.entries < log.most and log.limit - log.units or 0
  local ends = log.entries > 0 and math.max(0, latest + log.window - now) or 0
  results[q] = {math.max(0, left), ends, latest, 0}
end

for _, asked in ipairs(cost > 1 and {1, cost} or {1}) do
  reply[#reply + 1] = asked
  for q = 1, quotas do
    reply[#reply + 1] = fits_at(logs[q], asked)
  end
end
reply[#reply + 1] = marked
-- noted
local function after(q)
  local wait = -1
  if cost <= logs[q].limit then
    local at = fits_at(logs[q], cost)
    wait = at > 0 and at - now or 0
  end
  return results[q], wait
end
-- end noted
