-- A drain in sliding windows. It follows `head.lua`, which describes the call. A drain is rarer
-- than a check, so it always reads and writes all columns.
--
-- Reply {TIME, {counted ..., state}}: the former count of each quota, and the former state, false
-- without one.

local window, state_key = windows(), KEYS[1]
local kinds, bucket, limit, counted, quotas = {}, {}, {}, {}, 0
local ends, cost
ends, at = read_at('<d', numbers, at)
while at + 16 < ends do
  quotas = quotas + 1
  limit[quotas], kinds[quotas], at = select(2, read_at('<ddd', numbers, at))
  bucket[quotas] = window.bucket_of(kinds[quotas], now)
end
cost = read_at('<d', numbers, at)

local state = state_of(state_key)
if type(state) == 'table' then
  return state
end
local columns, before, marked = {}, {}, 0
if state then
  columns, before, marked = window.columns_of(state)
end
if not columns then
  return {now, ''}
end

-- The columns as this call sees them. One that takes nothing is written as it was.
local seen, parts, charged, fits = {}, {}, 0, true
for q, kind in ipairs(kinds) do
  local other = window.other_width(kind)
  seen[q] = window.own_column({[kind] = columns[kind], [other] = columns[other]}, kind, bucket[q])
  counted[q] = window.counted_at(seen[q], bucket[q])
  parts[q] = math.max(0, math.min(cost, limit[q] - counted[q]))
  charged, fits = math.max(charged, parts[q]), fits and parts[q] == cost
end
if charged > 0 then
  for q, kind in ipairs(kinds) do
    if parts[q] > 0 then
      seen[q] = window.charged_in(seen[q], kind, bucket[q], parts[q])
      columns[kind], columns[window.other_width(kind)] = seen[q], nil
    end
  end
  window.write(redis.call, state_key, now, marked, kinds, before, columns)
end

local former = {unpack(counted)}
former[quotas + 1] = state
local reply = {now, former}
-- noted
local function leaves(q, number)
  return (number + 65) * window.terms(kinds[q]) - now
end

-- The wait ends when enough of the oldest buckets have left.
local function wait_of(q)
  local excess = counted[q] + parts[q] + cost - limit[q]
  if cost > limit[q] then
    return -1
  end
  for _, held in ipairs(excess > 0 and window.buckets_of(seen[q]) or {}) do
    excess = excess - (held[1] >= bucket[q] - 64 and held[2] or 0)
    if excess <= 0 then
      return leaves(q, held[1])
    end
  end
  return 0
end

local function after(q)
  local counts = seen[q] and bucket[q] <= seen[q].last + 64
  local left = math.max(0, limit[q] - counted[q] - parts[q])
  return {left, counts and leaves(q, seen[q].last) or 0, 0, 0}, wait_of(q)
end
-- end noted
