-- What `back.lua` does with sliding windows; `back_head.lua` and `window_head.lua` precede.

local counted = {state_key}
local changed = false

-- A charge made at `made` is taken from its own bucket, a cost from the oldest one that counts upward.
local function take_back(q)
  local kind, given, left = kinds[q], 0, {}
  local column = columns[kind]
  local own = made and bucket_of(kind, made)
  for _, held in ipairs(column and bucket[q] >= column.last - 64 and buckets_of(column) or {}) do
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
    columns[kind], changed = column_of(kind, left), true
  end
  return given
end

local function add_states(reply)
  if changed then
    write(redis.call, state_key, now, marked, kinds, before, columns)
  end
  reply[#reply + 1] = redis.call('GET', state_key)
end
