-- Refunds the debt that is not repaid yet, oldest first. The core's `ledger.rs` has the same
-- functions and explains them.

local HOLES = 32

-- The largest written and the largest skipped debt, as in `bucket.rs` and `ledger.rs`.
local MOST = 4503599627370496

local function read_ledger(q)
  local ledger = {}
  ledger.mark, ledger.born, ledger.last, ledger.at, ledger.shift, ledger.turned, ledger.rebased = struct.unpack(NUMBERS, tail[q])
  for i = 57, #tail[q], 16 do
    local behind, debt = struct.unpack('>I8I8', tail[q], i)
    ledger[#ledger + 1] = {behind = behind, debt = debt}
  end
  return ledger
end

local function written(ledger)
  local tail = {struct.pack(NUMBERS, ledger.mark, ledger.born, ledger.last, ledger.at, ledger.shift, ledger.turned, ledger.rebased)}
  for _, hole in ipairs(ledger) do
    tail[#tail + 1] = struct.pack('>I8I8', hole.behind, hole.debt)
  end
  return table.concat(tail)
end

-- Moves the front by this debt, and over the holes that it meets.
local function advance(ledger, by)
  while ledger[1] and ledger[1].behind <= by do
    table.remove(ledger, 1)
  end
  for _, hole in ipairs(ledger) do
    hole.behind = hole.behind - by
  end
end

-- Moves the front to the present. The front never moves back.
local function pass(q, ledger)
  local from = ledger.at
  ledger.at = math.max(from, now)
  advance(ledger, number_of[q][1] * (ledger.at - from))
end

local function skipped_of(ledger)
  local skipped = ledger.shift
  for _, hole in ipairs(ledger) do
    skipped = skipped - hole.debt
  end
  return skipped
end

-- The distance from the front to the end of a charge. It includes the holes between them. A front
-- that never skips finds the charge at `place`.
local function distance_to(ledger, number, place)
  local rebased = number < ledger.turned and ledger.rebased or 0
  return math.max(0, place - skipped_of(ledger) - rebased)
end

-- Joins holes without debt between them. Beyond HOLES, joins those with the least debt between
-- them.
local function join(ledger)
  while true do
    local place, least
    for i = 1, #ledger - 1 do
      local gap = ledger[i + 1].behind - ledger[i].behind
      if not least or gap < least then
        place, least = i, gap
      end
    end
    if not least or (least > 0 and #ledger <= HOLES) then
      return
    end
    ledger[place].debt = ledger[place].debt + table.remove(ledger, place + 1).debt
  end
end

local function skip(ledger, debt)
  ledger.shift = ledger.shift + debt
  if ledger.shift > MOST then
    ledger.born, ledger.turned, ledger.rebased = math.max(ledger.born, ledger.turned), ledger.last + 1, skipped_of(ledger)
    ledger.shift = ledger.shift - ledger.rebased
  end
  while ledger.shift > MOST do
    local first = table.remove(ledger, 1)
    ledger.shift, ledger.rebased = ledger.shift - first.debt, ledger.rebased + first.debt
  end
end

-- Cuts `debt` out of the line, `distance` from the front.
local function cut(ledger, distance, debt)
  local place, skipped, behind = 1, 0, 0
  while ledger[place] and ledger[place].behind + skipped < distance do
    place, skipped, behind = place + 1, skipped + ledger[place].debt, ledger[place].behind
  end
  -- After holes were joined, the charge may lie in a hole.
  behind = math.max(behind, distance - skipped)
  for i = place, #ledger do
    ledger[i].behind = math.max(behind, ledger[i].behind - debt)
  end
  table.insert(ledger, place, {behind = behind, debt = debt})
  join(ledger)
  skip(ledger, debt)
  advance(ledger, 0)
end

-- Ends the line at the debt. A hole at the end has no effect.
local function end_line(ledger, debt)
  while #ledger > 0 and ledger[#ledger].behind >= debt do
    ledger.shift = ledger.shift - table.remove(ledger).debt
  end
end

local function take_back(q)
  local repaid, price = number_of[q][1], number_of[q][2]
  local at, rests = now, counted[q]
  if rests > MOST then
    at, rests = first[q], second[q]
  end
  local ledger = tail[q] ~= '' and read_ledger(q)
  if ledger then
    pass(q, ledger)
  end
  local wanted, distance = cost * price, nil
  local given = math.min(wanted, rests)
  if made then
    if not ledger or number[q] < ledger.born then
      return 0
    end
    distance = distance_to(ledger, number[q], owed_at(ledger.at, repaid, made, owed_then[q]))
    given = math.min(given, distance)
  end
  if given > 0 then
    rests = rests - given
    if ledger and made then
      cut(ledger, math.max(0, distance - wanted), given)
    elseif ledger then
      advance(ledger, given)
      skip(ledger, given)
    end
    if ledger then
      end_line(ledger, owed_at(ledger.at, repaid, at, rests))
      tail[q] = written(ledger)
    end
    first[q], second[q], changed = at, rests, true
  end
  return math.ceil(given / price)
end

