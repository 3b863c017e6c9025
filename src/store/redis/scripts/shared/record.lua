-- The record of an id, as `once.lua` writes it; nil without one. It has the cost, the instant, and
-- 1 if refunded. Eight values for each quota follow, of which the first two are names. The list
-- that ends a drain's record is returned separately. A corrupt record ends the call before any
-- write.
local function record_of(key)
  local written = redis.pcall('GET', key)
  if type(written) == 'table' and string.sub(written.err, 1, 9) ~= 'WRONGTYPE' then
    written = redis.call('GET', key)
  end
  if not written then
    return nil
  end
  local is_read, record = pcall(cmsgpack.unpack, written)
  local is_record = is_read and type(record) == 'table'
  local drained = is_record and type(record[#record]) == 'table' and table.remove(record) or nil
  is_record = is_record and #record >= 3 and (#record - 3) % 8 == 0
  for place = 1, is_record and #record or 0 do
    local is_name = place > 3 and (place - 4) % 8 < 2
    is_record = is_record and type(record[place]) == (is_name and 'string' or 'number')
  end
  for place = 1, is_record and drained and (#record - 3) / 4 or 0 do
    is_record = is_record and type(drained[place]) == 'number'
  end
  if not is_record then
    error('foreign record')
  end
  return record, drained
end

