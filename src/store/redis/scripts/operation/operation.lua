-- Ends an operation. `operation_head.lua` describes it.

-- sale
if record and how == 'once' then
  if add_waits then
    add_waits()
  end
  local left = sale[4] < 0 and now >= sale[1] and math.max(0, sale[1] + sale[2] - now) or 0
  reply[#reply + 1] = {'replayed', record[1], left}
  return reply
end
local outcome = {'unknown'}
if record and how == 'id' then
  local units, wanted, is_forgotten = record[1], spent < 0 and record[1] or spent, cost == 0
  cost = 0
  if wanted > units then
    outcome = {'exceeded', units}
  elseif sale[4] >= 0 then
    outcome = (spent < 0 or wanted == sale[4]) and {'again', sale[4], sale[5]} or {'reused'}
  elseif now >= sale[3] then
    outcome = {'expired'}
  else
    outcome, cost = {'settled', wanted, 0}, is_forgotten and 0 or units - wanted
  end
end
-- end sale
-- hold
if drain_of > 0 and turn == 0 then
  how, is_charge, over, runs = 'charge', true, 'drain', {{cost = drain_of, times = 1, meta = ''}}
end
-- end hold
if not is_charge then
  local given = freed
  if how == 'reset' then
    redis.call('DEL', unpack(state_keys))
-- plain
    redis.call('DEL', policy_base .. 'held')
-- end plain
    redis.call('SET', reset_key, string.format('%.0f', now), 'PX', life)
-- hold
    ended, in_flight, is_unswept = in_flight, 0, false
    redis.call('ZREMRANGEBYRANK', held_key, '1', '-1')
-- end hold
  elseif cost > 0 and (not till or now < till) then
    -- A charge without quotas has occupied only a place.
    given = undone and #undone == 3 and cost or 0
    for q = 1, quotas do
      cost = parts[q] or cost
      if cost > 0 and (not made or number[q]) then
        given = math.max(given, take_back(q))
      end
    end
  end
-- plain
  if record and record[3] == 0 then
    record[3] = 1
    record[#record + 1] = drained
    if own_hold then
      own_hold[2] = 2
      redis.call('ZREM', policy_base .. 'held', id)
    end
    redis.call('SET', record_key, packed(record, own_hold, place), 'KEEPTTL')
  end
-- end plain
-- hold
  settle(given, 0)
-- end hold
-- sale
  if outcome[1] == 'settled' then
    outcome[3], sale[4], sale[5] = given, outcome[2], given
    redis.call('SET', record_key, cmsgpack.pack(record, sale), 'KEEPTTL')
  end
-- end sale
  local states = {now, given}
  add_states(states)
-- hold
  if turn == 0 then
  add_places(states)
-- end hold
-- sale
  states[#states + 1] = outcome
-- end sale
  return states
-- hold
  end
-- end hold
end
-- hold
if turn == 0 then
-- end hold

-- A check that waits is charged at the first instant at which it fits.
local start = now
if over == 'wait' and runs[1].cost > 0 then
  start = place_in_line(runs[1].cost, longest, queue)
end

-- Decides the costs in order. Each is charged to all quotas or to none.
local allowed, units, count = {}, 0, 0
for _, run in ipairs(runs) do
  local fit = run.cost > 0 and run.times or 0
  for q = 1, fit > 0 and quotas or 0 do
    fit = math.min(fit, math.floor((room[q] - units) / run.cost), (slots[q] or math.huge) - count)
  end
-- hold
  if lacks_place then
    fit = 0
  end
-- end hold
  if fit > 0 then
    allowed[#allowed + 1] = {cost = run.cost, times = fit, meta = run.meta}
    units, count = units + fit * run.cost, count + fit
  end
end

-- A drain that does not fit charges each quota as much as fits there.
local most, fits = units, units == runs[1].cost
for q = 1, quotas do
  parts[q] = units
  if over == 'drain' and not fits then
    parts[q] = math.max(0, math.min(runs[1].cost, drains[q] or room[q]))
    most = math.max(most, parts[q])
  end
end

-- By quota, number and debt of its charge.
local entries = {}
if most > 0 then
  local refused = charge(parts, allowed)
  if refused then
    return refused
  end
  for q = 1, (how ~= 'charge' or start > now) and quotas or 0 do
    entries[q] = parts[q] > 0 and {note(q, hold > 0 and now + hold or 0, start)} or nil
  end
  save()
end
if add_waits then
  add_waits()
end
if how ~= 'once' or most == 0 then
-- hold
  settle(0, most)
  add_places(reply)
-- end hold
-- sale
  reply[#reply + 1] = {'denied'}
-- end sale
  return reply
end

cost, record, drained = runs[1].cost, {}, over == 'drain' and {} or nil
record[1], record[2], record[3] = cost, start, 0
for q = 1, quotas do
  for place = 4 * q - 3, 4 * q do
    record[#record + 1] = place % 4 > 0 and place % 4 < 3 and about[place] or tonumber(about[place])
  end
  local left, whole_after = standing_after(q)
  left = start == now and left or 0
  local entry = entries[q] or {0, 0}
-- sale
  lasts = ends and math.min(lasts, whole_after) or lasts
-- end sale
  for _, result in ipairs({math.max(0, left), math.max(0, whole_after), entry[1], entry[2]}) do
    record[#record + 1] = result
  end
  if drained then
    local wait = fits and 0 or cost > limit[q] and -1 or wait_of(q)
    drained[2 * q - 1], drained[2 * q] = parts[q], wait
  end
end
if start > now then
  place = {}
  for q = 1, quotas do
    place[q] = source_of(sources[q])
  end
end
-- hold
if over ~= 'drain' then
  -- The time to live of a hold in line counts from its start.
  own_hold = {held_at + start - now + ttl, 0, tonumber(life), 0, 0, 0, meta, release and 1 or 0}
  occupy()
  in_flight, own = in_flight + 1, 'open'
end
-- end hold
record[#record + 1] = drained
-- hold
keep(record, own_hold, tonumber(life))
-- end hold
-- plain
redis.call('SET', record_key, packed(record, nil, place), 'PX', life)
-- end plain
-- sale
record[2] = now + later
redis.call('SET', record_key, cmsgpack.pack(record, {now, lasts, now + hold, -1, 0}), 'PX', life)
reply[#reply + 1] = {'sold', cost, lasts}
do
  return reply
end
-- end sale
record[2] = start - now
table.insert(record, 1, 'charged')
-- hold
add_places(record)
-- end hold
return record
-- hold
end
end
-- end hold
