-- Decides a list of costs for one key against all quotas of its policy, and charges what it admits. `window_head.lua`
-- precedes.
--
-- One script, because deciding and charging must be one step: two trips admit what both callers saw free.
--
-- ARGV  the costs, in order, as runs: cost, how many times
--
-- Reply {TIME, counted ...}      what each quota counted before: every cost was admitted, and each fits once more
--       {TIME, counted ..., previous, current, next of each quota}
--                                the same with the segments as they were before, false where there is none: when a
--                                cost was denied, is a peek, or would now be denied, and after a clock stepped back

local reply = {now}
local format, width, total, filled = {}, {}, {}, {}
local stepped = false
for q = 1, quotas do
  local w = limit[q] < 4294967296 and 4 or 8
  local f = w == 4 and '>I4' or '>I8'
  local i = bucket[q]
  local before, current = read[at[q]], read[at[q] + 1]
  local after = at[q + 1] - at[q] == 3 and read[at[q] + 2]

  local sum = 0
  if current then
    sum = struct.unpack(f, current, #current - w + 1)
    filled[q] = (#current - HEADER) / w
    stepped = stepped or filled[q] > i + 1
  end
  total[q] = sum
  if after then
    sum = sum + struct.unpack(f, after, #after - w + 1)
    stepped = true
  end
  if before and #before > HEADER + i * w then
    sum = sum + struct.unpack(f, before, #before - w + 1)
    if i > 0 then
      sum = sum - struct.unpack(f, before, HEADER + (i - 1) * w + 1)
    end
  end
  format[q], width[q] = f, w
  reply[q + 1] = sum
end

-- Decide the costs in order; each is charged to all quotas or to none.
local charged, dearest, tell = 0, 0, stepped
for r = runs, #ARGV - 1, 2 do
  local cost, times = tonumber(ARGV[r]), tonumber(ARGV[r + 1])
  if cost == 0 then
    tell = true
  else
    local fit = times
    for q = 1, quotas do
      fit = math.min(fit, math.floor((limit[q] - reply[q + 1] - charged) / cost))
    end
    charged = charged + math.max(fit, 0) * cost
    dearest = math.max(dearest, cost)
  end
end
for q = 1, quotas do
  tell = tell or reply[q + 1] + charged + dearest > limit[q]
end

if charged > 0 then
  for q = 1, quotas do
    local key, w, f, i = KEYS[place[q]], width[q], format[q], bucket[q]
    local sum = struct.pack(f, total[q] + charged)
    if not filled[q] then
      -- A segment matters until its last bucket has left the window; one second more spares the edge.
      local life = (segment[q] + 2) * length[q] - now
      local ttl = string.format('%.0f', math.ceil(life / 1000) + 1000)
      redis.call('SET', key, string.rep('\0', HEADER + i * w) .. sum, 'PX', ttl)
    elseif filled[q] <= i then
      redis.call('APPEND', key, string.rep(struct.pack(f, total[q]), i - filled[q]) .. sum)
    else
      -- The current bucket, and after a step back all later ones of the segment as well.
      local current, sums = read[at[q] + 1], {}
      for j = i, filled[q] - 1 do
        sums[#sums + 1] = struct.pack(f, struct.unpack(f, current, HEADER + j * w + 1) + charged)
      end
      redis.call('SETRANGE', key, string.format('%.0f', HEADER + i * w), table.concat(sums))
    end
  end
end

if tell then
  for q = 1, quotas do
    reply[#reply + 1] = read[at[q]]
    reply[#reply + 1] = read[at[q] + 1]
    reply[#reply + 1] = at[q + 1] - at[q] == 3 and read[at[q] + 2]
  end
end
