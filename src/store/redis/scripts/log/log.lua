-- Decides a list of costs for one key against all quotas of its policy, and records the allowed
-- ones. It follows `log_head.lua`.
--
-- Deciding and charging must be one step. With two trips, two callers spend the same free units.
--
-- ARGV  the costs, in order, as runs: cost, repetitions, meta (empty: none).
--
-- Reply {TIME, ''}   The value is corrupt. Nothing was charged.
--       {TIME, units, entries, latest ...}
--                    The former count of each quota and its latest instant. Every cost was allowed,
--                    and each fits once more.
--       {TIME, units, entries, latest ..., cost, instant of each quota ..., mark}
--                    The same, and when cost 1 and each other cost will fit without more
--                    charges; 0 is now or never. Reservations may be undone until `mark`, us.

-- How many of the oldest entries to drop before a charge of these units.
local function dead(log, units)
  if log.latest + log.window + log.slack <= now then
    return log.count
  end
  local _, base = pair(log, 0)
  local full = (log.sum - base) % WHOLE + units > FULL
  if not full and (log.live <= 64 or log.live <= log.count / 2) then
    return 0
  end
  local left = first(1, log.live, function(place)
    return pair(log, place) + log.window + log.slack > now
  end) - 1
  return (full or left >= log.count / 2) and left or 0
end

-- Appends the charges, and drops expired entries when due. Returns the names of the new entries.
local function append(log, charges, units)
  local dropped = dead(log, units)
  local at, sum, names = math.max(now, log.latest), log.sum, {}
  for _, charge in ipairs(charges) do
    for _ = 1, charge.times do
      sum = (sum + charge.cost) % WHOLE
      names[#names + 1] = struct.pack('>I8I8', at, sum)
    end
  end
  local added = table.concat(names)
  -- The log counts until its last entry has expired. One more second covers the edge.
  local ttl = string.format('%.0f', math.ceil((at + log.window - now) / 1000) + 1000)
  if dropped > 0 or not log.exists then
    local mark = pair(log, 0)
    local _, base = pair(log, dropped)
    local kept = dropped < log.count and redis.call('GETRANGE', log.key, (dropped + 1) * PAIR, -1) or ''
    local whole = struct.pack('>I8I8', mark, base) .. kept .. added
    redis.call('SET', log.key, whole, 'PX', ttl)
    log.head = string.sub(whole, 1, HEAD)
  else
    redis.call('APPEND', log.key, added)
    redis.call('PEXPIRE', log.key, ttl)
    log.head = #log.head < HEAD and string.sub(log.head .. added, 1, HEAD) or log.head
  end
  log.count, log.live = log.count - dropped + #names, log.live - dropped
  log.units, log.entries = log.units + units, log.entries + #names
  return names, ttl
end

-- Adds the causes of the charges. Each removes up to two expired notes; `old` are the first notes.
-- The charge is already made, so nothing here may raise an error.
local function note(log, charges, names, ttl, old)
  local key, noted, name = KEYS[quotas + 1], {}, 0
  for _, charge in ipairs(charges) do
    for _ = 1, charge.times do
      name = name + 1
      if charge.meta ~= '' then
        noted[#noted + 1] = names[name] .. struct.pack('>I8', charge.cost) .. charge.meta
      end
    end
  end
  local gone = 0
  for place = 1, math.min(#old, 2 * #noted) do
    if struct.unpack('>I8', old[place]) + log.window + log.slack <= now then
      gone = gone + 1
    end
  end
  if gone > 0 then
    redis.pcall('LTRIM', key, gone, -1)
  end
  redis.pcall('RPUSH', key, unpack(noted))
  redis.pcall('PEXPIRE', key, ttl)
end

-- The instant at which enough units and entries have expired for a cost; 0 for now or never.
local function fits_at(log, cost)
  if cost > log.limit then
    return 0
  end
  local place = log.live + log.entries - log.most
  local excess = log.units + cost - log.limit
  if excess > 0 then
    place = math.max(place, first(log.live, log.count, function(place)
      local _, sum = pair(log, place)
      return (sum - log.gone) % WHOLE >= excess
    end))
  end
  return place >= log.live and math.min(pair(log, place) + log.window, EXACT) or 0
end

local reply, marked = {now}, 0
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
end

-- Decides the costs in order. Each is charged to all quotas or to none.
local charges, units, count, metas, dearest, tell = {}, 0, 0, 0, 0, false
local asked, distinct = {[1] = true}, {1}
for r = runs, #ARGV - 2, 3 do
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
    if not asked[cost] then
      asked[cost] = true
      distinct[#distinct + 1] = cost
    end
  end
end

-- Reads the notes before it charges, since another program may have written there.
local old_notes = {}
if metas > 0 then
  old_notes = redis.call('LRANGE', KEYS[quotas + 1], 0, 2 * metas - 1)
  for _, old in ipairs(old_notes) do
    if #old < 24 then
      return {now, ''}
    end
  end
end

for q = 1, quotas do
  local log = logs[q]
  if count > 0 then
    local names, ttl = append(log, charges, units)
    if q == metas_of and metas > 0 then
      note(log, charges, names, ttl, old_notes)
    end
  end
  tell = tell or log.units + dearest > log.limit or log.entries >= log.most
end

if tell then
  for _, cost in ipairs(distinct) do
    reply[#reply + 1] = cost
    for q = 1, quotas do
      reply[#reply + 1] = fits_at(logs[q], cost)
    end
  end
  reply[#reply + 1] = marked
end
-- noted
for q = 1, units > 0 and quotas or 0 do
  on_charge(q, units)
end
-- end noted
