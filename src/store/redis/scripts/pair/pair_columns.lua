  -- A pair that `carry` has converted has a fourth value: when the rate that wrote it has repaid it.
  -- Where `is_own`, no debt of another rate counts.
  local function pairs_of(columns, kinds, is_own)
    local found = {}
    for q, kind in ipairs(kinds) do
      for _, column in ipairs(columns) do
        if not found[q] and not column.taken and column.a == kind[1] and column.b == kind[2] then
          column.taken = true
          found[q] = {column.first, column.second, column.tail, source = column}
        end
      end
    end
    if carry and not is_own then
      carry(found, columns, kinds)
    end
    for q = 1, #kinds do
      found[q] = found[q] or {0, 0, ''}
    end
    return found
  end

  -- The counting columns of other quotas: their number, their parts, and the latest end. A quota
  -- has each column before `from`, and each `taken` one.
  local function others(columns, from, own)
    local count, heads, rests, tails, ends = 0, {}, {}, {}, 0
    for place = from, #columns do
      local column = columns[place]
      local till = not column.taken and ends_at(column.a, column.b, nil, nil, nil, column.first, column.second) or 0
      -- An ended one stays for clocks that step back.
      if till > now - EDGE and own + count < MOST then
        count, ends = count + 1, math.max(ends, till)
        heads[count] = struct.pack('>I8I8', column.first, column.second)
        rests[count] = column.kind .. struct.pack('>I2', #column.tail)
        tails[count] = column.tail
      end
    end
    return count, table.concat(heads), table.concat(rests), table.concat(tails), ends
  end

  return {columns_of = columns_of, pairs_of = pairs_of, others = others}
end

