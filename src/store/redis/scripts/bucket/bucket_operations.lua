-- The numbers of a tail, the largest debt that is written, and the most refunded debt.
local NUMBERS, MOST = '>I8I8I8I8I8I8I8', 4503599627370496

-- A drain may charge to one burst of debt below empty.
for q = 1, quotas do
  drains[q] = room[q] + limit[q]
end

local function wait_of(q)
  local repaid, price, burst = unpack(number_of[q])
  -- After a conversion the debt at this instant may be beyond what doubles represent exactly.
  local excess = second[q] - (burst - runs[1].cost) * price
  return second[q] > 0 and math.max(0, first[q] - now + math.ceil(excess / repaid)) or 0
end

local function note(q, till)
  local marked, born, last, refunded, cleared, _ = 0, nil, 0, 0, 0, nil
  if tail[q] ~= '' then
    marked, born, last, _, refunded, cleared = struct.unpack(NUMBERS, tail[q])
  end
  last = math.max(last + 1, now)
  tail[q] = struct.pack(NUMBERS, math.max(marked, till), born or last, last, 0, refunded, cleared, 0)
  return last, second[q] + refunded
end

-- Refunds as `ledger.rs` and `bucket.rs` of the core.
local function take_back(q)
  local repaid, price = unpack(number_of[q])
  local at, rests, wanted = now, counted[q], cost * price
  if rests > MOST then
    at, rests = first[q], second[q]
  end
  if made and tail[q] == '' then
    return 0
  end
  local marked, born, last, _, refunded, cleared
  if tail[q] ~= '' then
    marked, born, last, _, refunded, cleared = struct.unpack(NUMBERS, tail[q])
  end
  if made then
    local paid = repaid * math.max(0, math.max(now, first[q]) - made)
    local of_all = math.max(0, owed_then[q] - refunded) - paid
    local of_charge = number[q] >= cleared and wanted - paid or 0
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
      tail[q] = struct.pack(NUMBERS, marked, born, last, 0, refunded, cleared, 0)
    end
  end
  return math.ceil(given / price)
end

