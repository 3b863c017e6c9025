-- The operations of `operation_head.lua` on sliding counters. All quotas share the counts.

if spoilt and how ~= 'reset' then
  return {now, ''}
end

local state_keys, behind, charged, widest = KEYS, {}, 0, 0
for q = 1, quotas do
  behind[q], limit[q], at = read_at('<dd', numbers, at)
  room[q] = limit[q] - (sum - sums[before - behind[q]])
  widest = math.max(widest, room[q])
end
local runs = runs_at(numbers, at)
-- A drain takes as much as any quota has room for.
for q = 1, quotas do
  drains[q] = widest
end

local function charge(parts)
  charged = parts[1]
  charge_tick(charged)
end

-- All quotas share one mark. It lives as long as the counts, so that a clock may step back. The
-- instant of a charge identifies its tick.
local function note(q, till)
  if q == 1 and till > 0 then
    local life = math.max(kept, till - now)
    redis.call('SET', KEYS[1], text_of('%.0f', math.max(marked, till)), 'PX', text_of('%.0f', math.ceil(life / 1000)))
  end
  return 0, 0
end

local function save()
end

-- The instant at which a tick leaves the window of a quota, from now, us.
local function leaves(q, place)
  return (skipped + first - 2 + place + behind[q]) * tick - now
end

local function standing_after(q)
  local last = size
  while last > here and count_at(last) == 0 do
    last = last - 1
  end
  return room[q] - charged, leaves(q, last)
end

-- The wait ends when enough of the oldest ticks have left.
local function wait_of(q)
  local excess = charged + runs[1].cost - room[q]
  for place = before - behind[q] + 1, excess > 0 and size or 0 do
    excess = excess - count_at(place) - (place == here and charged or 0)
    if excess <= 0 then
      return leaves(q, place)
    end
  end
  return 0
end

-- The first quota refunds for all: a charge in its own tick, and a cost from the oldest tick on.
local taken

-- The counter that a record names, without what does not identify it.
local function ticks_of(name)
  return (string.gsub(name, ':strict$', ''))
end

-- How many ticks before the current one count for any window, also of the undone charge.
local before_then = reach
if undone then
  for _, of_record in ipairs(undo_by_record(function(name, window)
    local is_own = ticks_of(name) == ticks_of(counters[1] or name)
    return is_own and {window / tick - (string.sub(name, -7) == ':strict' and 0 or 1)}
  end)) do
    before_then = math.max(before_then, of_record[1])
  end
end

-- Takes a charge back from a tick before those in KEYS, which a longer window still counts.
local function take_from(number)
  -- A name ends with the start of the tick, a multiple of its number.
  local beginning, start = string.match(KEYS[3], '^(.*%D)(%d+)$')
  local key = beginning .. text_of('%.0f', number * start / first)
  local count = count_of(redis.call('GET', key) or '')
  local amount = count and math.min(cost, count) or 0
  if amount > 0 and amount == count then
    redis.call('DEL', key)
  elseif amount > 0 then
    redis.call('INCRBY', key, text_of('%.0f', -amount))
  end
  return amount
end

local function take_back()
  if taken then
    return taken
  end
  taken = 0
  local from_place, to_place = 1, size
  if made then
    local number = (made - made % tick) / tick
    from_place = number - first + 3 - skipped
    if from_place < 1 and number >= (now - now % tick) / tick - before_then then
      taken = take_from(number)
    end
    to_place = math.min(from_place, size)
    from_place = math.max(from_place, 1)
  end
  for place = from_place, to_place do
    local amount = math.min(cost - taken, count_at(place))
    if amount > 0 then
      add(place, -amount)
      told[place], taken = text_of('%.0f', count_at(place) - amount), taken + amount
    end
  end
  return taken
end

local function add_states(states)
  states[3] = how == 'reset' and string.rep(',', size - 1) or table.concat(told, ',')
end

