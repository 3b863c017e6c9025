-- A drain in fixed windows and token buckets. It follows `head.lua`, which describes the call, and
-- `pair_quotas.lua`. The algorithm's part defines these:
--   `drainable(limit, left)`              the most units that a quota takes
--   `wait_of(q, cost, owed, left, reset)` us until a cost fits that is within the limit
--
-- Reply {TIME, former state}, or 0 without one.

local ends, cost
ends, at = read_at('<d', numbers, at)
read_quotas(ends - 16)
cost = read_at('<d', numbers, at)

local state = state_of(state_key)
if type(state) == 'table' then
  return state
end
local columns = {}
if state then
  columns = general.columns_of(state)
end
if not columns then
  return {now, ''}
end
read_pairs(columns)

local parts, charged, fits = {}, 0, true
for q = 1, quotas do
  fits = fits and (cost == 0 or cost <= left[q])
end
for q = 1, quotas do
  local limit = number_of[q][3]
  parts[q] = fits and cost or math.max(0, math.min(cost, drainable(limit, left[q])))
  charged = math.max(charged, parts[q])
end

local results = {}
for q = 1, quotas do
  local a, b, _, d, e, f = unpack(number_of[q])
  if parts[q] > 0 then
    first[q], second[q] = charge(a, b, from[q], counted[q], parts[q])
    if tail[q] ~= '' and not goes_on(counted[q], tail[q]) then
      tail[q] = ''
    end
  end
  -- noted
  left[q], reset[q] = math.max(0, left[q] - parts[q]), math.max(0, ends_at(a, b, d, e, f, first[q], second[q]) - now)
  results[q] = parts[q] > 0 and {noted(q)} or {left[q], reset[q], 0, 0}
  -- end noted
end
if charged > 0 then
  write_pairs(columns)
end

local reply = {now, state or 0}
-- noted
local function after(q)
  local limit, wait = number_of[q][3], -1
  if cost <= limit then
    wait = wait_of(q, cost, left[q], reset[q])
  end
  return results[q], wait
end
-- end noted
