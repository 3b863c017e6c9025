-- Decides a list of costs for one key against all quotas of its policy, and records the allowed
-- ones. It follows `log_head.lua`.
--
-- Deciding and charging must be one step. With two trips, two callers spend the same free units.
--
-- Reply {TIME, ''}   The value is corrupt. Nothing was charged.
--       {TIME, units, entries, latest ...}
--                    The former count of each quota and its latest instant. Every cost was allowed,
--                    and each fits once more.
--       {TIME, units, entries, latest ..., cost, instant of each quota ..., mark}
--                    The same, and when cost 1 and each other cost will fit without more
--                    charges; 0 is now or never. Reservations may be undone until `mark`, us.

local reply = {now}
local marked = open_all(reply)
if not marked then
  return {now, ''}
end

-- Decides the costs in order. Each is charged to all quotas or to none.
local charges, units, count, metas, dearest, tell = {}, 0, 0, 0, 0, false
local costs = {}
for r = first_run, #ARGV - 2, 3 do
  local cost, times = tonumber(ARGV[r]), tonumber(ARGV[r + 1])
  if cost == 0 then
    tell = true
  else
    local fit = times
    for q = 1, quotas do
      local log = logs[q]
      fit = math.min(fit, math.floor((log.limit - log.units - units) / cost), log.most - log.entries - count)
    end
    if fit > 0 then
      charges[#charges + 1] = {cost = cost, times = fit, meta = ARGV[r + 2]}
      units, count = units + fit * cost, count + fit
      metas = metas + (ARGV[r + 2] ~= '' and fit or 0)
    end
    tell = tell or fit < times
    dearest = math.max(dearest, cost)
    costs[#costs + 1] = cost
  end
end

local old_notes = oldest_notes(metas)
if not old_notes then
  return {now, ''}
end

for q = 1, quotas do
  local log = logs[q]
  if count > 0 then
    local names, ttl = append(log, charges, units)
    if q == metas_of and metas > 0 then
      note_charges(log, charges, names, ttl, old_notes)
    end
  end
  tell = tell or log.units + dearest > log.limit or log.entries >= log.most
end

if tell then
  add_instants(reply, costs, marked)
end
return reply
