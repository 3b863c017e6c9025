-- What `back.lua` does with sliding logs; `back_head.lua` and `log_head.lua` precede.

local counted, logs = KEYS, {}
for q = 1, quotas do
  logs[q] = open(q)
end

local function cost_of(log, place)
  local _, below = pair(log, place - 1)
  local _, sum = pair(log, place)
  return (sum - below) % WHOLE
end

-- How much to take of which places, in ascending order. Of those of a charge's instant one that costs as much as it did,
-- since they cannot be told apart; if it is gone, or for a cost, one after the other.
local function parts(log, from, past)
  for place = from, made and past - 1 or from - 1 do
    if cost_of(log, place) == cost then
      return {{place, cost}}, cost
    end
  end
  local found, rest = {}, cost
  for place = from, past - 1 do
    local part = math.min(rest, cost_of(log, place))
    if part > 0 then
      found[#found + 1] = {place, part}
      rest = rest - part
    end
    if rest == 0 then
      break
    end
  end
  return found, cost - rest
end

-- Lowers the sums from the first part on, and leaves out what costs nothing any more. Returns the old names with the new
-- ones and what was taken.
local function lowered(log, found)
  local kept, names, taken, part = {}, {}, 0, 1
  local _, below = pair(log, found[1][1] - 1)
  for place = found[1][1], log.count do
    local at, sum = pair(log, place)
    local here = found[part] and found[part][1] == place and found[part][2] or 0
    if here > 0 then
      taken, part = taken + here, part + 1
    end
    local now_sum = (sum - taken) % WHOLE
    local name = now_sum ~= below and struct.pack('>I8I8', at, now_sum)
    names[struct.pack('>I8I8', at, sum)] = {name = name, taken = here}
    if name then
      kept[#kept + 1] = name
    end
    below = now_sum
  end
  return table.concat(kept), names
end

-- Who caused the charges follows their names.
local function rename(key, names, at_least)
  local gone = 0
  for from = -1, -1000000, -1000 do
    local notes = redis.call('LRANGE', key, from - 999, from)
    for i = #notes, 1, -1 do
      local note = notes[i]
      local change, at = names[string.sub(note, 1, 16)], struct.unpack('>I8', note)
      if change and change.name then
        local cost_now = struct.unpack('>I8', note, 17) - change.taken
        local changed = change.name .. struct.pack('>I8', cost_now) .. string.sub(note, 25)
        redis.call('LSET', key, from + i - #notes, changed)
      elseif change then
        redis.call('LSET', key, from + i - #notes, '')
        gone = gone + 1
      elseif at < at_least then
        from = -1000000
        break
      end
    end
    if #notes < 1000 or from == -1000000 then
      break
    end
  end
  if gone > 0 then
    redis.call('LREM', key, -gone, '')
  end
end

local function take_back(q)
  local log = logs[q]
  local from, past = log.live, log.count + 1
  if made then
    from = first(log.live, past, function(place)
      return pair(log, place) >= number[q]
    end)
    past = first(from, past, function(place)
      return pair(log, place) > number[q]
    end)
  end
  local found, given = parts(log, from, past)
  if given == 0 then
    return 0
  end
  local start = pair(log, found[1][1])
  local rest, names = lowered(log, found)
  local before = redis.call('GETRANGE', log.key, 0, found[1][1] * PAIR - 1)
  local all = before .. rest
  local latest = #all > PAIR and struct.unpack('>I8', all, #all - PAIR + 1) or 0
  if latest + log.window + log.slack <= now then
    redis.call('DEL', log.key)
  else
    redis.call('SET', log.key, all, 'KEEPTTL')
  end
  if q == noted then
    rename(KEYS[quotas + 1], names, start)
  end
  return given
end

local function add_states(reply)
  for q = 1, quotas do
    local log = open(q)
    reply[#reply + 1] = log.units
    reply[#reply + 1] = log.entries
    reply[#reply + 1] = log.latest
  end
end

