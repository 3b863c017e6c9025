-- The operations of `operation_head.lua` on sliding windows. Checks have faster code for the same.

local window, state_key = windows(), KEYS[1]
local state_keys, changed = {state_key}, false
local lengths, kinds, step, counted = {}, {}, {}, {}
at = at + 8
for q = 1, quotas do
  lengths[q], limit[q], kinds[q], at = read_at('<ddd', numbers, at)
  step[q] = (now - now % lengths[q]) / lengths[q]
end
local runs = runs_at(numbers, at)
if undone then
  lengths, kinds = {}, {}
  for q, of_record in ipairs(undo_by_record(function(name, window, limit_then)
    local is_wide = limit_then >= 4294967296 and 1 or 0
    return string.sub(name, 1, 3) == 's4-' and {(window + 63 - (window + 63) % 64) / 64, 2 * window + is_wide}
  end)) do
    lengths[q], kinds[q] = of_record[1], of_record[2]
    step[q], limit[q] = (now - now % lengths[q]) / lengths[q], 0
  end
end

local state = state_of(state_key)
if type(state) == 'table' then
  return state
end

-- The step of the charge made at `made`.
local function own_step(q)
  return (made - made % lengths[q]) / lengths[q]
end

local columns, before, marked = {}, {}, 0
if state then
  columns, before, marked = window.columns_of(state)
end
if not columns then
  if how ~= 'reset' then
    return {now, ''}
  end
  columns = {}
end

-- The columns as this call sees them. One that takes nothing is written as it was.
local seen = {}
for q, kind in ipairs(kinds) do
  local other = window.other_width(kind)
  seen[q] = window.own_column({[kind] = columns[kind], [other] = columns[other]}, kind, step[q])
  counted[q] = window.counted_at(seen[q], step[q])
  room[q] = limit[q] - counted[q]
end
reply[2] = {unpack(counted)}
reply[2][quotas + 1] = state

local function charge(parts)
  for q, kind in ipairs(kinds) do
    if parts[q] > 0 then
-- sale
      -- A sale counts as of the last instant at which its units may be spent.
      step[q] = (now + later - (now + later) % lengths[q]) / lengths[q]
-- end sale
      seen[q] = window.charged_in(seen[q], kind, step[q], parts[q])
      columns[kind], columns[window.other_width(kind)] = seen[q], nil
    end
    room[q] = room[q] - parts[q]
  end
end

-- All quotas share one mark.
local function note(_, till)
  marked = math.max(marked, till)
  return 0, 0
end

local function save()
  window.write(redis.call, state_key, now, marked, kinds, before, columns)
end

local function leaves(q, number)
  return (number + 65) * lengths[q] - now
end

local function standing_after(q)
  local counts = seen[q] and step[q] <= seen[q].last + 64
  return room[q], counts and leaves(q, seen[q].last) or 0
end

-- The wait ends when enough of the oldest steps have left.
local function wait_of(q)
  local excess = runs[1].cost - room[q]
  for _, held in ipairs(excess > 0 and window.steps_of(seen[q]) or {}) do
    excess = excess - (held[1] >= step[q] - 64 and held[2] or 0)
    if excess <= 0 then
      return leaves(q, held[1])
    end
  end
  return 0
end

-- Refunds a charge made at `made` in its own step, and a cost from the oldest counting step on.
local function take_back(q)
  local other = window.other_width(kinds[q])
  if columns[other] and not columns[kinds[q]] then
    -- Counts of a former limit may be too large for sums of the present width.
    kinds[q] = other
  end
  local kind, given, left = kinds[q], 0, {}
  local column, own = window.own_column(columns, kind, step[q]), made and own_step(q)
  if own and column and own >= step[q] - 64 and window.lowered(column, own, cost) then
    columns[kind], changed = column, true
    return cost
  end
  for _, held in ipairs(column and window.steps_of(column) or {}) do
    local amount = 0
    if held[1] >= step[q] - 64 and (not own or own == held[1]) then
      amount = math.min(cost - given, held[2])
      given = given + amount
    end
    if held[2] > amount then
      left[#left + 1] = {held[1], held[2] - amount}
    end
  end
  if given > 0 then
    columns[kind], changed = window.column_of(kind, left), true
  end
  return given
end

local function add_states(states)
  if changed then
    save()
  end
  states[3] = redis.call('GET', state_key)
end

