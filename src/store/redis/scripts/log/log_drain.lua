-- A drain in sliding logs. It follows `log_charge.lua`.
--
-- ARGV  cost, 1, meta (empty: none).
--
-- Reply as that of `log.lua` with instants for the cost.

local cost, meta = tonumber(ARGV[runs]), ARGV[runs + 2]
local reply, parts, fits = {now}, {}, true
local marked = open_all(reply)
if not marked then
  return {now, ''}
end
for q, log in ipairs(logs) do
  parts[q] = log.entries < log.most and math.max(0, math.min(cost, log.limit - log.units)) or 0
  fits = fits and parts[q] == cost
end

local is_noted = meta ~= '' and (parts[metas_of] or 0) > 0
local old_notes = oldest_notes(is_noted and 1 or 0)
if not old_notes then
  return {now, ''}
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
