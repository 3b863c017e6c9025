-- A drain in a sliding counter. It follows `counter_head.lua`. All quotas have one count, so it
-- takes as much as any of them has room for. `counter_charge.lua` follows.
--
-- Reply as that of `counter.lua`.

if spoilt then
  return {now, ''}
end

local reply = {now, table.concat(told, ',')}
if marked > now then
  reply[3] = marked
end

local room, most = math.huge, 0
for q = 1, quotas do
  behind[q], limit[q], at = read_at('<dd', numbers, at)
  counted[q] = sum - sums[before - behind[q]]
  room = math.min(room, limit[q] - counted[q])
  most = math.max(most, limit[q] - counted[q])
end
local cost = read_at('<d', numbers, at)
local fits = cost <= room
charged = math.min(cost, most)
local parts = {}
for q = 1, quotas do
  parts[q] = charged
end

