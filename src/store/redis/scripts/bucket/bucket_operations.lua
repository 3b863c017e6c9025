-- Beside a line a charge begins after the last place, and only a drain charges.
for q = 1, quotas do
  local repaid, price, burst = unpack(number_of[q])
  if tail[q] ~= '' and is_held(tail[q]) then
    begun[q], room[q] = line_of(tail[q]), 0
    counted[q] = owed_at(begun[q], repaid, first[q], second[q])
  end
  -- A drain may charge to one burst of debt below empty.
  local room_below = 2 * burst * price - counted[q]
  drains[q] = (room_below - room_below % price) / price
-- hold
  -- The rest of a settle leaves no debt.
  drains[q] = drain_of > 0 and math.max(0, room[q]) or drains[q]
-- end hold
end

-- us from now until a cost fits into a pair, whose debt ends at `ends` if a rate has converted it.
local function fits_after(q, cost, at, debt, ends)
  local repaid, price, burst = unpack(number_of[q])
  -- After a conversion the debt at this instant may be beyond what doubles represent exactly.
  local excess = debt - (burst - cost) * price
  local open = tail[q] ~= '' and math.max(now, line_of(tail[q])) or now
  local fits_at = math.min(at + math.ceil(excess / repaid), ends or math.huge)
  return math.max(open, fits_at) - now
end

-- After the charge, which converts a debt for good.
local function wait_of(q)
  return fits_after(q, runs[1].cost, first[q], second[q])
end

-- Moves the charge to the first instant at which the cost fits, if that is within `longest` us and
-- leaves at most `queue` units in line. `queue` is negative without a bound. Returns the instant,
-- us. The core's `line.rs` explains it.
local function place_in_line(cost, longest, queue)
  local start, standing = now, 0
  for q = 1, quotas do
    local repaid, price, burst = unpack(number_of[q])
    if cost > burst then
      return now
    end
    start = math.max(start, now + fits_after(q, cost, first[q], second[q], repaid_at[q]))
    if tail[q] ~= '' and is_held(tail[q]) then
      standing = math.max(standing, math.ceil((owed_at(now, repaid, first[q], second[q]) - burst * price) / price))
    end
  end
  if start > now + longest or queue >= 0 and standing + cost > queue then
    return now
  end
  for q = 1, quotas do
    local repaid, price, burst = unpack(number_of[q])
    local is_repaid = repaid_at[q] and start >= repaid_at[q]
    begun[q], counted[q] = start, is_repaid and 0 or owed_at(start, repaid, first[q], second[q])
    room[q] = (burst * price - counted[q] - (burst * price - counted[q]) % price) / price
  end
  return start
end

-- A charge that starts later is the last place in line.
local function note(q, till, start)
  local marked, born, last, line, refunded, cleared = 0, nil, 0, 0, 0, 0
  if tail[q] ~= '' then
    marked, born, last, line, refunded, cleared = struct.unpack(NUMBERS, tail[q])
  end
  last = math.max(last + 1, now)
  local name = ''
  if start and start > now then
    line, name = start, q == 1 and record_key and id or ''
  end
  tail[q] = struct.pack(NUMBERS, math.max(marked, till), born or last, last, line, refunded, cleared, 0)
    .. written_name(name)
  return last, second[q] + refunded
end

-- Refunds as `ledger.rs` and `bucket.rs` of the core.
local function take_back(q)
  local repaid, price = unpack(number_of[q])
  local at, rests, wanted = begun[q], counted[q], cost * price
  if rests > MOST then
    at, rests = first[q], second[q]
  end
  if made and tail[q] == '' then
    return 0
  end
  local marked, born, last, line, refunded, cleared
  if tail[q] ~= '' then
    marked, born, last, line, refunded, cleared = struct.unpack(NUMBERS, tail[q])
  end
  -- A place that has not started gives nothing back here. After a clock that stepped back, a charge
  -- is later than now without a place in line.
  if made and made > now and first[q] <= line then
    return 0
  end
  if made then
    local paid = repaid * math.max(0, math.max(now, first[q]) - made)
    local of_all = math.max(0, owed_then[q] - refunded) - paid
    local of_charge = number[q] >= cleared and wanted + stays * price - paid or 0
    wanted = number[q] >= born and math.min(wanted, math.max(0, of_all, of_charge)) or 0
  end
  local given = math.min(wanted, rests)
  if given > 0 then
    first[q], second[q], changed = at, rests - given, true
    if marked then
      refunded, cleared = refunded + given, made and cleared or last + 1
      if refunded > MOST then
        born, refunded = last + 1, 0
      end
      tail[q] = struct.pack(NUMBERS, marked, born, last, line, refunded, cleared, 0)
        .. string.sub(tail[q], NUMBERED + 1)
    end
  end
  return math.ceil(given / price)
end

