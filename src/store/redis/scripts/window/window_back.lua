-- Refunds in sliding windows. It follows `back_head.lua` and `head.lua`; `back.lua` ends it.
--
-- Reply {TIME, ''} for a corrupt value. A reset deletes it.

local window, state_key = windows(), KEYS[1]
local kinds, bucket, quotas, ends = {}, {}, 0, nil
ends, at = read_at('<d', numbers, at)
while at < ends do
  quotas = quotas + 1
  kinds[quotas], at = select(3, read_at('<ddd', numbers, at))
  bucket[quotas] = window.bucket_of(kinds[quotas], now)
end

-- The columns by their kinds, those of the policy as seen now; the other former kinds; and the
-- mark.
local state = state_of(state_key)
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

-- Takes units from one of the latest buckets, and lowers the sums from there on. Returns whether
-- the bucket keeps some. Otherwise nothing has changed.
local function lowered(column, number, units)
  if number < column.first or number > column.last or number + 4 < column.last then
    return false
  end
  local _, format, width, modulus = window.terms(column.kind)
  if (window.sum_of(column, number) - window.sum_of(column, number - 1)) % modulus <= units then
    return false
  end
  for later = number, column.last - 1 do
    local place = (later - column.first) % KEPT * width
    local sum = pack(format, (read_at(format, column.sums, place + 1) - units) % modulus)
    column.sums = string.sub(column.sums, 1, place) .. sum .. string.sub(column.sums, place + width + 1)
  end
  column.total = (column.total - units) % modulus
  return true
end

-- Refunds a charge made at `made` in its own bucket, and a cost from the oldest counting bucket on.
local function take_back(q)
  local kind, given, left = kinds[q], 0, {}
  local own = made and window.bucket_of(kind, made)
  -- Most give-backs concern a recent bucket with other charges.
  if own and own >= bucket[q] - 64 and columns[kind] and lowered(columns[kind], own, cost) then
    changed = true
    return cost
  end
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
