-- A check with an id: once it was charged, it is answered from its record. `once.lua` ends it. After the arguments of
-- the part between come these, which are read from the end:
--
-- KEYS  ..., the record
-- ARGV  ..., of each quota the name of its counter, its name, limit and window, us; four times the quotas; life of the
--       record, ms; 1 where a replica must have what is answered, else 0
--
-- Reply that of the part between, if nothing was charged; else 'charged' or, of one that was before, 'replayed', and
--       the record: cost, TIME, 1 where it was taken back, and for each quota the four from above, what was left, us
--       until it is whole, and number and debt of the charge

local record_key, is_durable = table.remove(KEYS), table.remove(ARGV) == '1'
local life, about = table.remove(ARGV), {}
for i = tonumber(table.remove(ARGV)), 1, -1 do
  about[i] = table.remove(ARGV)
end
local record = record_of(record_key)
if record then
  if is_durable then
    -- WAIT is about what this connection wrote, and another one may have written the record.
    redis.call('PEXPIRE', record_key, math.max(1, redis.call('PTTL', record_key)))
  end
  table.insert(record, 1, 'replayed')
  return record
end

