-- What has not been repaid since, the oldest debts first; the core's `ledger.rs` says how that is known.

local MOST = 32

-- The most that is written, fractions; `bucket.rs` has the same.
local MOST_OWED = 4503599627370496

local function read_tail(q)
  local mark, born, last = struct.unpack('>I8I8I8', tail[q])
  local refunds = {}
  for i = 25, #tail[q], 32 do
    local of, number, debt, till = struct.unpack('>I8I8I8I8', tail[q], i)
    refunds[#refunds + 1] = {of = of, number = number, debt = debt, till = till}
  end
  return mark, born, last, refunds
end

-- The tail with one more refund, without those that can shorten nothing any more.
local function with_refund(q, of, debt, till)
  local mark, born, last, refunds = read_tail(q)
  local kept = {}
  for _, refund in ipairs(refunds) do
    if refund.till > now then
      kept[#kept + 1] = refund
    end
  end
  if #kept == MOST then
    local oldest, merged = table.remove(kept, 1), kept[1]
    merged.of, merged.number = math.min(oldest.of, merged.of), math.max(oldest.number, merged.number)
    merged.debt, merged.till = oldest.debt + merged.debt, math.max(oldest.till, merged.till)
  end
  last = math.max(last + 1, now)
  kept[#kept + 1] = {of = of, number = last, debt = debt, till = till}
  local written = {struct.pack('>I8I8I8', mark, born, last)}
  for _, refund in ipairs(kept) do
    written[#written + 1] = struct.pack('>I8I8I8I8', refund.of, refund.number, refund.debt, refund.till)
  end
  return table.concat(written)
end

-- What is left of this charge's debt.
local function left_of_charge(q)
  if not tail[q] then
    return 0
  end
  local _, born, _, refunds = read_tail(q)
  if number[q] < born then
    return 0
  end
  local left_over = owed(q, made, owed_then[q])
  for _, refund in ipairs(refunds) do
    if refund.of < number[q] and number[q] < refund.number then
      left_over = left_over - refund.debt
    end
  end
  return math.max(0, math.min(left_over, cost * parameter(q, 2)))
end

local function take_back(q)
  local debt = owed(q, first[q], second[q])
  local at, rests = now, debt
  if debt > MOST_OWED then
    at, rests = first[q], second[q]
  end
  local given = math.min(made and left_of_charge(q) or cost * parameter(q, 2), rests)
  if given > 0 then
    local of = made and number[q] or 0
    local rest = tail[q] and with_refund(q, of, given, now + math.ceil(debt / parameter(q, 1))) or ''
    redis.call('SET', KEYS[q], struct.pack('>I8I8', at, rests - given) .. rest, 'KEEPTTL')
  end
  return math.ceil(given / parameter(q, 2))
end

