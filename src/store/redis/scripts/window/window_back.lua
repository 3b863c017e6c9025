-- Refunds in sliding windows. It follows `back_head.lua` and `head.lua`; `back.lua` ends it.
--
-- Reply {TIME, ''} for a corrupt value. A reset deletes it.

local state_key, quotas, ends = KEYS[1], 0, nil
local lengths, kinds, bucket = {}, {}, {}
ends, at = read_at('<d', numbers, at)
while at < ends do
  quotas = quotas + 1
  local length, _, kind, following = read_at('<ddd', numbers, at)
  lengths[quotas], kinds[quotas], at = length, kind, following
  bucket[quotas] = (now - now % length) / length
end

local state = state_of(state_key)

-- The bucket of the charge made at `made`.
local function own_bucket(q)
  return (made - made % lengths[q]) / lengths[q]
end

-- Most returns of leases and reservations concern one of the latest buckets, in which others have
-- charged, too. This lowers the sums from that bucket on in place. Returns whether it has;
-- otherwise nothing has changed.
local function lowered_in_place()
  if #state < HEADER + COLUMN * quotas then
    return false
  end
  local mark, count = read_at('>I8B', state)
  local writes, place = {}, HEADER + COLUMN * quotas + 1
  for q = 1, quotas do
    local head = HEADER + COLUMN * (q - 1)
    local kind, first, last, total, places = read_at('>I8I8I8I8I2', state, head + 1)
    local format, width, modulus = '>I4', 4, 4294967296
    if kind % 2 == 1 then
      format, width, modulus = '>I8', 8, 4503599627370496
    end
    local own, seen = own_bucket(q), bucket[q]
    if kind ~= kinds[q] or not number[q] or total >= modulus or #state < place + places * width - 1
      or own < first or own > last or own + 4 < last or own < seen - 64 or last > seen + 64
      or places > KEPT or places < KEPT and last - first > places then
      return false
    end
    local function sum_at(bucket)
      return read_at(format, state, place + (bucket - first) % KEPT * width)
    end
    local before = own == first and 0 or sum_at(own - 1)
    if ((own == last and total or sum_at(own)) - before) % modulus <= cost then
      return false
    end
    writes[#writes + 1] = {head + 24, pack('>I8', (total - cost) % modulus)}
    for later = own, last - 1 do
      local offset = place + (later - first) % KEPT * width - 1
      writes[#writes + 1] = {offset, pack(format, (sum_at(later) - cost) % modulus)}
    end
    place = place + places * width
  end
  if mark > EXACT or count ~= quotas or place ~= #state + 1 then
    return false
  end
  for _, write in ipairs(writes) do
    redis.call('SETRANGE', state_key, write[1], write[2])
  end
  return true
end

if made and not record and cost > 0 and (not till or now < till) and type(state) == 'string'
  and lowered_in_place() then
  return {now, cost, redis.call('GET', state_key)}
end

-- The columns by their kinds, those of the policy as seen now; the other former kinds; and the
-- mark.
local window = windows()
local columns, before, marked = {}, {}, 0
if state then
  columns, before, marked = window.columns_of(type(state) == 'string' and state or '')
end
if not columns and how ~= 'reset' then
  return {now, ''}
end
for q = 1, columns and quotas or 0 do
  -- Counts of a former limit may be too large for sums of this width.
  local other = window.other_width(kinds[q])
  if columns[other] and not columns[kinds[q]] then
    kinds[q] = other
  end
  columns[kinds[q]] = window.own_column(columns, kinds[q], bucket[q])
end

local state_keys = {state_key}
local changed = false

-- Refunds a charge made at `made` in its own bucket, and a cost from the oldest counting bucket on.
local function take_back(q)
  local kind, given, left = kinds[q], 0, {}
  local own = made and own_bucket(q)
  for _, held in ipairs(columns[kind] and window.buckets_of(columns[kind]) or {}) do
    local amount = 0
    if held[1] >= bucket[q] - 64 and (not own or own == held[1]) then
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

local function add_states(reply)
  if changed then
    window.write(redis.call, state_key, now, marked, kinds, before, columns)
  end
  reply[#reply + 1] = redis.call('GET', state_key)
end
