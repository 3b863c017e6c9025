-- Charges in sliding logs. It follows `log_head.lua`.

-- Opens all logs, and adds their counts to a reply. Returns until when reservations may be undone;
-- nil if one log is corrupt.
local function open_all(reply)
  local marked = 0
  for q = 1, quotas do
    local log = open(q)
    if not log then
      return nil
    end
    logs[q] = log
    reply[#reply + 1] = log.units
    reply[#reply + 1] = log.entries
    reply[#reply + 1] = log.latest
    marked = log.entries > 0 and math.max(marked, log.mark) or marked
  end
  return marked
end

-- The notes that a charge with so many metas may remove; nil if one is corrupt. Another program may
-- have written there, so this precedes the charge.
local function oldest_notes(metas)
  local old = metas > 0 and redis.call('LRANGE', KEYS[quotas + 1], 0, 2 * metas - 1) or {}
  for _, note in ipairs(old) do
    if #note < 24 then
      return nil
    end
  end
  return old
end

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
  -- ahead
  at = math.max(now + span, log.latest)
  -- end ahead
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

