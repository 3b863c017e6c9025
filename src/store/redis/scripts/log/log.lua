-- The operations of `operation_head.lua` on sliding logs.
--
-- A refund moves the sums on one side of the entry: earlier ones up or later ones down, whichever
-- are fewer. Usually few are. A refund by cost starts at the oldest counting entries. A refunded
-- charge is usually one of the latest or oldest. Entries without a cost are removed.

local state_keys, runs, reply = {unpack(KEYS)}, {}, {now}
for _, name in ipairs(other_logs) do
  state_keys[#state_keys + 1] = policy_base .. name .. ':log'
  state_keys[#state_keys + 1] = policy_base .. name .. ':metas'
end
for r = first_run, #ARGV - 2, 3 do
  runs[#runs + 1] = {cost = tonumber(ARGV[r]), times = tonumber(ARGV[r + 1]), meta = ARGV[r + 2]}
end
local marked = how == 'reset' or open_all(reply)
if not marked then
  return {now, ''}
end
if undone then
  local is_sound = true
  logs = undo_by_record(function(name, window, limit_then)
    for q, counter in ipairs(counters) do
      if counter == name then
        return logs[q]
      end
    end
    local key = string.sub(name, 1, 4) == 'l16-' and policy_base .. name
    local log = key and read({key = key .. ':log', window = window, limit = limit_then, most = math.huge, slack = window})
    is_sound = is_sound and (log or not key)
    return log
  end)
  quotas = #logs
  if not is_sound then
    return {now, ''}
  end
end
for q, log in ipairs(logs) do
  limit[q], room[q], slots[q] = log.limit, log.limit - log.units, log.most - log.entries
  drains[q] = slots[q] > 0 and room[q] or 0
end

local function charge(parts, allowed)
  local charges = #allowed > 0 and allowed or {{times = 1, meta = runs[1].meta}}
  local metas = 0
  for _, charge in ipairs((parts[metas_of] or 0) > 0 and charges or {}) do
    metas = metas + (charge.meta ~= '' and charge.times or 0)
  end
  local old_notes = oldest_notes(metas)
  if not old_notes then
    return {now, ''}
  end
  for q, log in ipairs(logs) do
    if parts[q] > 0 then
      charges[1].cost = #allowed > 0 and charges[1].cost or parts[q]
      local names, ttl = append(log, charges, parts[q])
      log.latest = math.max(now + span, log.latest)
      if q == metas_of and metas > 0 then
        note_charges(log, charges, names, ttl, old_notes)
      end
    end
  end
end

-- The recorded instant identifies a charge.
local function note(q, till)
  if till > 0 then
    redis.call('SETRANGE', KEYS[q], 0, struct.pack('>I8', math.max(pair(logs[q], 0), till)))
  end
  return logs[q].latest, 0
end

local function save()
end

add_waits = function()
  local costs = {}
  for place, run in ipairs(runs) do
    costs[place] = run.cost
  end
  add_instants(reply, costs, marked)
end

local function standing_after(q)
  local log = logs[q]
  return log.entries < log.most and log.limit - log.units or 0, log.entries > 0 and log.latest + log.window - now or 0
end

local function wait_of(q)
  local at = fits_at(logs[q], runs[1].cost)
  return at > 0 and at - now or 0
end

-- The counting costs up to a counting entry.
local function total(log, sum)
  return (sum - log.gone) % WHOLE
end

local function total_at(log, place)
  local _, sum = pair(log, place)
  return total(log, sum)
end

-- The first entry of the refund, and its units. Charges of one instant are indistinguishable, so it
-- selects one of equal cost. If none remains, it refunds the rest.
local function part(log, instant)
  if not made then
    return log.live, math.min(cost, log.units)
  end
  local from = first(log.live, log.count + 1, function(place)
    return pair(log, place) >= instant
  end)
  local past = first(from, log.count + 1, function(place)
    return pair(log, place) > instant
  end)
  local below = total_at(log, from - 1)
  local before = below
  for place = from, past - 1 do
    local sum = total_at(log, place)
    if sum - before == cost then
      return place, cost
    end
    before = sum
  end
  return from, math.min(cost, before - below)
end

-- The entries from one place to before another, with their sums moved by `by`.
local function moved(log, from, past, by)
  local bytes, pairs_of = redis.call('GETRANGE', log.key, from * PAIR, past * PAIR - 1), {}
  for at = 1, #bytes, PAIR do
    local instant, sum = struct.unpack('>I8I8', bytes, at)
    pairs_of[#pairs_of + 1] = struct.pack('>I8I8', instant, (sum + by) % WHOLE)
  end
  return table.concat(pairs_of)
end

-- The notes from one place to before another, with the names of entries whose sums moved by `by`.
local function renamed(key, from, past, by)
  local notes = {}
  for chunk = from, past - 1, 1000 do
    for _, note in ipairs(redis.call('LRANGE', key, chunk, math.min(chunk + 999, past - 1))) do
      local at, sum = struct.unpack('>I8I8', note)
      notes[#notes + 1] = struct.pack('>I8I8', at, (sum + by) % WHOLE) .. string.sub(note, 17)
    end
  end
  return notes
end

-- Appends the notes to the list by RPUSH, or the reversed notes in front of it by LPUSH.
local function push(how, key, notes)
  for chunk = 1, #notes, 1000 do
    redis.call(how, key, unpack(notes, chunk, math.min(chunk + 999, #notes)))
  end
end

-- Removes the causes of the entries from `place` to before `kept`, and reduces that of `kept`.
-- Notes have the names of their entries, so they move too: earlier ones up from `dead` on, or later
-- ones down. An empty list loses its TTL, so new notes are added before old ones are removed.
local function note_less(log, key, place, kept, given, dead)
  local notes = redis.call('LLEN', key)
  if notes == 0 then
    return
  end
  -- The first note of an entry or a later one.
  local function first_note(low, entry)
    local instant, sum = math.huge, 0
    if entry <= log.count then
      instant, sum = pair(log, entry)
    end
    return first(low, notes, function(number)
      local at, sum_there = struct.unpack('>I8I8', redis.call('LRANGE', key, number, number)[1])
      return at > instant or at == instant and total(log, sum_there) >= total(log, sum)
    end)
  end
  local from = first_note(0, place)
  local past = first_note(from, kept)
  if dead then
    local before = renamed(key, first_note(0, dead), from, given)
    if past == notes then
      push('RPUSH', key, before)
      redis.call('LTRIM', key, past, -1)
    else
      local reversed = {}
      for at = #before, 1, -1 do
        reversed[#reversed + 1] = before[at]
      end
      redis.call('LTRIM', key, past, -1)
      push('LPUSH', key, reversed)
    end
    from = #before
  else
    local behind = renamed(key, past, notes, -given)
    if from > 0 then
      redis.call('LTRIM', key, 0, from - 1)
      push('RPUSH', key, behind)
    else
      push('RPUSH', key, behind)
      redis.call('LTRIM', key, notes, -1)
    end
  end
  local note = redis.call('LRANGE', key, from, from)[1]
  if note and kept <= log.count then
    local at, sum, cost_there = struct.unpack('>I8I8I8', note)
    local instant, sum_kept = pair(log, kept)
    local left = total(log, sum_kept) - total_at(log, place - 1) - given
    if at == instant and sum == (sum_kept - (dead and 0 or given)) % WHOLE and cost_there > left then
      redis.call('LSET', key, from, string.sub(note, 1, 16) .. struct.pack('>I8', left) .. string.sub(note, 25))
    end
  end
end

local function take_back(q)
  local log = logs[q]
  local place, given = part(log, number[q])
  if given == 0 then
    return 0
  end
  -- The first entry that keeps a cost.
  local below = total_at(log, place - 1)
  local kept = first(place, log.count + 1, function(entry)
    return total_at(log, entry) - below > given
  end)
  -- Entries that expired beyond the slack need no move.
  local dead = first(1, log.live, function(entry)
    return pair(log, entry) + log.window + log.slack > now
  end)
  local all
  if place - dead <= log.count - kept then
    local _, base = pair(log, dead - 1)
    local head = struct.pack('>I8I8', log.mark, (base + given) % WHOLE)
    all = head .. moved(log, dead, place, given) .. redis.call('GETRANGE', log.key, kept * PAIR, -1)
  else
    dead = nil
    all = redis.call('GETRANGE', log.key, 0, place * PAIR - 1) .. moved(log, kept, log.count + 1, -given)
  end
  local latest = #all > PAIR and struct.unpack('>I8', all, #all - PAIR + 1) or 0
  -- Another plan or file may have noted causes for this log. Corrupt notes do not prevent the refund.
  pcall(note_less, log, (string.gsub(log.key, 'log$', 'metas')), place, kept, given, dead)
  if latest + log.window + log.slack <= now then
    redis.call('DEL', log.key)
  else
    redis.call('SET', log.key, all, 'KEEPTTL')
  end
  return given
end

local function add_states(states)
  for q = 1, quotas_of_policy do
    local log = open(q) or {units = 0, entries = 0, latest = 0}
    for _, number in ipairs({log.units, log.entries, log.latest}) do
      states[#states + 1] = number
    end
  end
end

