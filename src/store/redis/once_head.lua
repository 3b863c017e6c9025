-- A check with an id: once it was charged, it is answered from its record. `once.lua` ends it. After the arguments of the
-- part between come these, which are read from the end:
--
-- KEYS  ..., the record
-- ARGV  ..., of each quota the name of its counter, its name, limit and window, us; four times the quotas; life of the
--       record, ms
--
-- Reply that of the part between, if nothing was charged; else 'charged' or, of one that was before, 'replayed', and
--       the record: cost, TIME, 1 where it was taken back, and for each quota the four from above, what was left, us
--       until it is whole, and number and debt of the charge

local record_key, life, about = table.remove(KEYS), table.remove(ARGV), {}
for i = tonumber(table.remove(ARGV)), 1, -1 do
  about[i] = table.remove(ARGV)
end
local written = redis.call('GET', record_key)
if written then
  local record = cmsgpack.unpack(written)
  table.insert(record, 1, 'replayed')
  return record
end

